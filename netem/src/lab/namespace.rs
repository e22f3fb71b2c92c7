//! One node's network namespace: a thread of ours that lives in it, with the TAP interface `eth0`.
//!
//! Processes that the thread starts are born in the namespace. It has no name anywhere: it goes when the thread and its
//! processes have gone, however they go.

use std::fs;
use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Uid, getgid, getuid};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use super::{LabError, address, netlink};
use crate::link::NodeIndex;

/// The interface in each node.
pub(super) const INTERFACE: &str = "eth0";
/// Payload of an Ethernet frame.
const MTU: u16 = 1500;

type Answer = SyncSender<io::Result<Child>>;

/// A thread in a namespace of its own.
#[derive(Debug)]
pub(super) struct Namespace {
    /// Always there until it is dropped.
    orders: Option<SyncSender<(Command, Answer)>>,
    thread: Option<JoinHandle<()>>,
}

impl Namespace {
    /// A new namespace with its interface up, whose other end is returned.
    pub(super) fn open(rank: NodeIndex) -> Result<(Self, SyncDevice), LabError> {
        let (ready, opened) = sync_channel(1);
        let (orders, inbox) = sync_channel::<(Command, Answer)>(1);
        let thread = thread::Builder::new()
            .name(format!("node {rank}"))
            .spawn(move || match enter_network(rank) {
                Ok(tap) => {
                    // The other side waits for it.
                    let _ = ready.send(Ok(tap));
                    keep(&inbox);
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            })
            .map_err(LabError::failed("starting a node's thread"))?;
        let tap = opened.recv().map_err(|_| LabError::Failed {
            what: "entering a network namespace".into(),
            source: io::Error::other("the node's thread ended"),
        })??;
        let namespace = Self {
            orders: Some(orders),
            thread: Some(thread),
        };
        Ok((namespace, tap))
    }

    /// Starts a process in it. The process gets the parent-death signal it asked for when this namespace is dropped.
    pub(super) fn spawn(&self, command: Command) -> io::Result<Child> {
        let gone = || io::Error::other("the node's thread ended");
        let (answer, child) = sync_channel(1);
        let orders = self.orders.as_ref().ok_or_else(gone)?;
        orders.send((command, answer)).map_err(|_| gone())?;
        child.recv().map_err(|_| gone())?
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn keep(inbox: &Receiver<(Command, Answer)>) {
    while let Ok((mut command, answer)) = inbox.recv() {
        // Whoever gave the order waits for the answer.
        let _ = answer.send(command.spawn());
    }
}

fn enter_network(rank: NodeIndex) -> Result<SyncDevice, LabError> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(refused("network namespaces"))?;
    // Neighbour discovery and router solicitations would be traffic that no program asked for. Absent without IPv6.
    let _ = fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
    let failed = |what: &str| LabError::failed(format!("node {rank}: {what}"));
    netlink::loopback_up().map_err(failed("setting lo up"))?;
    let tap = DeviceBuilder::new()
        .name(INTERFACE)
        .layer(Layer::L2)
        .mac_addr(address::mac(rank))
        .ipv4(address::ip(rank), address::PREFIX_BITS, None)
        .mtu(MTU)
        .with(|tap| {
            tap.offload(false);
        })
        .build_sync()
        .map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound => LabError::NotPermitted {
                what: "TAP interfaces",
                reason: error.to_string(),
            },
            _ => failed("making its TAP interface")(error),
        })?;
    let index = tap.if_index().map_err(failed("finding its interface"))?;
    netlink::default_route(index).map_err(failed("its default route"))?;
    tap.set_nonblocking(true).map_err(failed("its TAP"))?;
    Ok(tap)
}

fn refused(what: &'static str) -> impl Fn(nix::Error) -> LabError {
    move |error| LabError::NotPermitted {
        what,
        reason: error.desc().to_owned(),
    }
}

/// Whether this process may make what the lab needs; it makes a network, and drops it.
///
/// # Errors
/// [`LabError::NotPermitted`] with the reason.
pub fn permitted() -> Result<(), LabError> {
    Namespace::open(0)?;
    let tried =
        thread::spawn(|| unshare(CloneFlags::CLONE_NEWNS).map_err(refused("mount namespaces")));
    tried.join().unwrap_or(Ok(()))
}

/// Without root: enters a user namespace in which this process may make the others. A process that has threads already
/// may not. With root it does nothing. The lab does it where it was not done before.
///
/// # Errors
/// [`LabError::NotPermitted`] where user namespaces are switched off, or there are threads.
pub fn enter() -> Result<(), LabError> {
    if getuid() == Uid::from_raw(0) {
        return Ok(());
    }
    let (uid, gid) = (getuid(), getgid());
    unshare(CloneFlags::CLONE_NEWUSER).map_err(|error| LabError::NotPermitted {
        what: "user namespaces",
        reason: match error {
            Errno::EINVAL => "this process has threads already".into(),
            _ => error.desc().to_owned(),
        },
    })?;
    let write = |file: &str, text: String| {
        fs::write(file, text).map_err(|error| LabError::NotPermitted {
            what: "mapping users into a user namespace",
            reason: format!("{file}: {error}"),
        })
    };
    write("/proc/self/setgroups", "deny".into())?;
    write("/proc/self/gid_map", format!("0 {gid} 1"))?;
    write("/proc/self/uid_map", format!("0 {uid} 1"))
}
