//! One stream of the library without anything of ours around it: the transport as [`skein_node::net`] builds it.

use std::pin::Pin;
use std::time::Instant;

use anyhow::{Context, Result};
use futures::future::poll_fn;
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt, TryFutureExt};
use libp2p::core::Endpoint;
use libp2p::core::muxing::{StreamMuxer, StreamMuxerBox, SubstreamBox};
use libp2p::core::transport::{Boxed, DialOpts, ListenerId, PortUse, TransportEvent};
use libp2p::core::upgrade::Version;
use libp2p::pnet::{PnetConfig, PreSharedKey};
use libp2p::{Multiaddr, PeerId, Transport, identity, noise, tcp, yamux};

use super::rate;

/// What the receiver reads at once.
const READ: usize = 256 << 10;

fn transport(key: Option<[u8; 32]>) -> Result<Boxed<(PeerId, StreamMuxerBox)>> {
    let keypair = identity::Keypair::generate_ed25519();
    let noise = noise::Config::new(&keypair)?;
    let tcp = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true));
    Ok(match key {
        Some(key) => {
            let shared = PnetConfig::new(PreSharedKey::new(key));
            tcp.and_then(move |socket, _| shared.handshake(socket))
                .upgrade(Version::V1)
                .authenticate(noise)
                .multiplex(yamux::Config::default())
                .boxed()
        }
        None => tcp
            .upgrade(Version::V1)
            .authenticate(noise)
            .multiplex(yamux::Config::default())
            .boxed(),
    })
}

/// Polls a connection as the swarm's task does.
async fn drive(mut muxer: StreamMuxerBox) {
    let _ = poll_fn(|context| {
        loop {
            match Pin::new(&mut muxer).poll(context) {
                std::task::Poll::Ready(Ok(_)) => {}
                std::task::Poll::Ready(Err(error)) => return std::task::Poll::Ready(error),
                std::task::Poll::Pending => return std::task::Poll::Pending,
            }
        }
    })
    .await;
}

/// The receiver: reads as many bytes as were announced, says so with one byte, and so on.
pub(super) async fn hold(key: Option<[u8; 32]>) -> Result<()> {
    let mut transport = transport(key)?;
    transport.listen_on(ListenerId::next(), "/ip4/127.0.0.1/tcp/0".parse()?)?;
    let upgrade = loop {
        match transport.next().await.context("the transport has ended")? {
            TransportEvent::NewAddress { listen_addr, .. } => println!("{listen_addr}"),
            TransportEvent::Incoming { upgrade, .. } => break upgrade,
            _ => {}
        }
    };
    let (_, mut muxer) = upgrade.await?;
    let mut stream = poll_fn(|context| Pin::new(&mut muxer).poll_inbound(context)).await?;
    tokio::spawn(drive(muxer));
    let mut bytes = vec![0; READ];
    loop {
        let mut announced = [0; 8];
        stream.read_exact(&mut announced).await?;
        let mut left = u64::from_le_bytes(announced);
        while left > 0 {
            let most = READ.min(left as usize);
            let n_read = stream.read(&mut bytes[..most]).await?;
            anyhow::ensure!(n_read > 0, "the stream has ended");
            left -= n_read as u64;
        }
        stream.write_all(&[1]).await?;
        stream.flush().await?;
    }
}

/// The sending end.
pub(super) struct Sender {
    stream: SubstreamBox,
    _transport: Boxed<(PeerId, StreamMuxerBox)>,
}

impl Sender {
    pub(super) async fn to(address: &str, key: Option<[u8; 32]>) -> Result<Self> {
        let mut transport = transport(key)?;
        let address: Multiaddr = address.parse()?;
        let options = DialOpts {
            role: Endpoint::Dialer,
            port_use: PortUse::New,
        };
        let dialling = transport.dial(address, options)?;
        let (_, mut muxer) = dialling.map_err(anyhow::Error::from).await?;
        let stream = poll_fn(|context| Pin::new(&mut muxer).poll_outbound(context)).await?;
        tokio::spawn(drive(muxer));
        Ok(Self {
            stream,
            _transport: transport,
        })
    }

    /// Writes so many bytes, a frame at a time; MB/s until all had arrived.
    pub(super) async fn send(&mut self, bytes: usize, frame: usize) -> Result<f64> {
        let body = vec![7; frame];
        let began = Instant::now();
        let announced = (bytes as u64).to_le_bytes();
        self.stream.write_all(&announced).await?;
        for _ in 0..bytes / frame {
            self.stream.write_all(&body).await?;
        }
        self.stream.flush().await?;
        self.stream.read_exact(&mut [0]).await?;
        Ok(rate(bytes, began))
    }
}
