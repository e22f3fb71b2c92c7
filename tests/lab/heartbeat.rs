//! What a bulk copy over a slow link does to the heartbeats on it. Prints the round trips; `node/examples/wire.rs` measures.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::netns::{Lab, Machine};
use crate::peer::built;
use crate::say;

const PORT: u16 = 47_111;
/// Ten seconds of the link.
const BYTES: &str = "25000000";
const LINK_MBIT: f64 = 20.0;
/// What the queue before the link holds at most.
const QUEUE_MS: f64 = 100.0;

/// The measuring program: `WIRE_BINARY`, else what cargo builds beside this test.
fn wire() -> PathBuf {
    built("WIRE_BINARY", ["--example", "wire"], "examples/wire")
}

/// Ends with the test.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Narrows what `machine` sends to the link's rate. False, with the reason printed, where the kernel cannot.
fn narrow(machine: &Machine) -> bool {
    let queue = (LINK_MBIT * QUEUE_MS / 8.0) as u32;
    let shape =
        format!("tc qdisc add dev eth0 root tbf rate {LINK_MBIT}mbit burst 4kb limit {queue}kb");
    let output = machine
        .command(Path::new("sh"))
        .args(["-c", &shape])
        .output()
        .unwrap();
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        say(&format!("SKIPPED: links cannot be narrowed here: {reason}"));
    }
    output.status.success()
}

#[test]
fn a_heartbeat_does_not_wait_behind_a_bulk_copy_or_gradients() {
    let Some(lab) = Lab::new(2) else { return };
    if !lab.machines.iter().all(narrow) {
        return;
    }
    let program = wire();
    let [holder, puller] = [&lab.machines[0], &lab.machines[1]];
    let address = format!("{}:{PORT}", holder.address);
    let mut hold = holder.command(&program);
    hold.args(["hold", "--listen", &address, "--bytes", BYTES])
        .stdin(Stdio::null());
    let _holder = Holder(hold.spawn().unwrap());
    for load in ["copy", "updates"] {
        let mut pull = puller.command(&program);
        pull.args(["pull", "--peer", &address, "--bytes", BYTES, "--load", load]);
        let output = pull.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let measured: Value = serde_json::from_slice(&output.stdout).unwrap();
        say(&measured.to_string());
        let number = |name: &str| measured[name].as_f64().unwrap();
        // A queue that stands would be seen in most of them; a busy machine is seen in the last.
        let waited = number("loaded_p50_ms") - number("idle_p50_ms");
        assert!(
            waited < QUEUE_MS / 5.0,
            "heartbeats wait {waited} ms behind {load}"
        );
        let rate = number("copy_mbit_s") + number("updates_mbit_s");
        assert!(rate > LINK_MBIT / 2.0, "{rate} Mbit/s of {load}");
    }
}
