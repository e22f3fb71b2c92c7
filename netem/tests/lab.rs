//! The lab with real processes: what a link does to them, what happens to nodes, and that nothing stays behind.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use skein_netem::lab::{self, Lab, LabError};
use skein_netem::link::Profile;
use skein_netem::record::{Metric, Record};
use skein_netem::scenario::{
    Action, Comparison, Condition, End, Event, Line, Node, Program, Scenario, Sim, When,
};

/// Set in a test that runs in a user namespace.
const AGAIN: &str = "SKEIN_NETEM_TEST_AGAIN";

/// Labs measure time: one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// None: there is nothing more to do here. Either this system does not permit a lab, and the reason is printed, or the test
/// was run again in a user namespace.
fn turn() -> Option<MutexGuard<'static, ()>> {
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Err(error) = lab::permitted() else {
        return Some(turn);
    };
    if std::env::var_os(AGAIN).is_some() {
        eprintln!("skipped: {error}");
        return None;
    }
    // The harness has threads, and only a process without may enter a user namespace.
    let test = thread::current().name().unwrap().to_owned();
    let again = Command::new(env!("CARGO_BIN_EXE_skein-netem-node"))
        .arg("as-root")
        .arg(std::env::current_exe().unwrap())
        .args([&test, "--exact", "--nocapture"])
        .env(AGAIN, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stderr);
    // 127: there are no user namespaces either.
    match again.status.code() {
        Some(0 | 127) => eprintln!("{said}"),
        _ => panic!("{test} in a user namespace: {said}"),
    }
    None
}

fn node(name: &str, words: &[&str]) -> Node {
    Node {
        name: name.into(),
        group: name.into(),
        cpu: None,
        memory: None,
        threads: 1,
        program: Program::Command(words.iter().map(|word| (*word).to_owned()).collect()),
        start: Some(Duration::ZERO),
        env: BTreeMap::new(),
        up: Line::default(),
        down: Line::default(),
    }
}

fn probe(name: &str, words: &str) -> Node {
    let words: Vec<&str> = ["{exe}", "probe"]
        .into_iter()
        .chain(words.split_whitespace())
        .collect();
    node(name, &words)
}

fn shell(name: &str, script: &str) -> Node {
    node(name, &["sh", "-c", script])
}

fn scenario(nodes: Vec<Node>) -> Scenario {
    Scenario {
        name: "test".into(),
        variant: String::new(),
        about: String::new(),
        seed: 1,
        repeat: 1,
        nodes,
        pairs: Vec::new(),
        events: Vec::new(),
        end: End {
            after: Duration::from_secs(60),
            job: false,
            exit: true,
            when: None,
        },
        expect: Vec::new(),
        job: None,
        sim: Sim::default(),
        folder: PathBuf::new(),
    }
}

fn testbed(out: &Path) -> Lab {
    Lab {
        exe: env!("CARGO_BIN_EXE_skein-netem-node").into(),
        out: out.into(),
    }
}

fn run(scenario: &Scenario) -> Record {
    let out = tempfile::tempdir().unwrap();
    let mut said = Vec::new();
    let mut progress = |t: f64, line: &str| said.push(format!("{t:.2} {line}"));
    let record = testbed(out.path()).run(scenario, &mut progress);
    let record = record.unwrap();
    assert!(record.duration_s < 59.0, "it does not end: {said:#?}");
    record
}

fn metric<'a>(record: &'a Record, node: usize, event: &str) -> &'a Metric {
    let of = &record.nodes[node];
    let found = of.metrics.iter().find(|line| line.event == event);
    found.unwrap_or_else(|| panic!("{} wrote no {event}: {:?}", of.name, record.marks))
}

fn delay(ms: u64) -> Line {
    Line {
        profile: Profile {
            delay: Duration::from_millis(ms),
            ..Profile::default()
        },
        trace: None,
    }
}

#[test]
fn two_nodes_reach_each_other_at_the_delay_that_is_set() {
    let Some(_turn) = turn() else { return };
    let mut of = scenario(vec![
        probe("asked", "echo"),
        probe(
            "asks",
            "round-trips --to 10.77.0.1 --count 50 --interval-ms 2",
        ),
    ]);
    for node in &mut of.nodes {
        node.up = delay(5);
        node.down = delay(5);
    }
    let record = run(&of);
    let found = metric(&record, 1, "round-trips");
    assert_eq!(found.number("received"), Some(50.0));
    let p50 = found.number("p50_ms").unwrap();
    assert!((19.5..60.0).contains(&p50), "{p50}");
    let carried = record.traffic.last().unwrap();
    assert!(
        carried
            .pairs
            .iter()
            .any(|pair| (pair.from, pair.to) == (1, 0)
                && pair.delivered >= 50 * 64
                && pair.delivered == pair.bytes)
    );
    assert!(record.marks.iter().all(|mark| mark.detail == "status 0"));
}

#[test]
fn a_flow_gets_the_rate_of_the_narrower_line() {
    let Some(_turn) = turn() else { return };
    let rate = 8_000_000;
    let mut of = scenario(vec![
        probe(
            "to",
            &format!("receive --seconds 2 --skip 0.5 --rate {rate}"),
        ),
        probe("from", "send --to 10.77.0.1"),
    ]);
    of.nodes[1].up.profile = Profile::rate(rate);
    of.nodes[0].down.profile = Profile::rate(rate * 3);
    let record = run(&of);
    let share = metric(&record, 0, "goodput")
        .number("share_of_bound")
        .unwrap();
    assert!((0.8..1.1).contains(&share), "{share}");
}

/// Python, as any user's script: no program of ours takes part.
const FLOOD: &str = r#"
import os, socket, struct, time, json
rank, group = int(os.environ["RANK"]), "239.7.7.7"
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
sock.bind(("", 7777))
sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, struct.pack("4s4s", socket.inet_aton(group), socket.inet_aton("0.0.0.0")))
sock.settimeout(0.05)
heard, deadline = set(), time.time() + 20
world = int(os.environ["WORLD_SIZE"])
wanted = {(kind, r) for kind in ("multicast", "broadcast") for r in range(world) if r != rank}
ends = None
while time.time() < deadline and (ends is None or time.time() < ends):
    sock.sendto(b"multicast %d" % rank, (group, 7777))
    sock.sendto(b"broadcast %d" % rank, ("255.255.255.255", 7777))
    try:
        while True:
            kind, who = sock.recvfrom(100)[0].decode().split()
            if int(who) != rank:
                heard.add((kind, int(who)))
    except TimeoutError:
        pass
    if heard == wanted and ends is None:
        ends = time.time() + 0.5
with open(os.environ["METRICS"], "a") as out:
    line = {"t_ms": int(time.time() * 1000), "event": "heard", "all": int(heard == wanted), "addresses": os.environ["NODE_ADDRS"]}
    out.write(json.dumps(line) + "\n")
"#;

#[test]
fn broadcast_and_multicast_reach_all_nodes() {
    let Some(_turn) = turn() else { return };
    let nodes = ["a", "b", "c", "d"].map(|name| node(name, &["python3", "-c", FLOOD]));
    let record = run(&scenario(nodes.into()));
    for rank in 0..4 {
        let heard = metric(&record, rank, "heard");
        assert_eq!(heard.number("all"), Some(1.0), "{heard:?}");
        let addresses = "10.77.0.1,10.77.0.2,10.77.0.3,10.77.0.4";
        assert_eq!(heard.fields["addresses"], addresses);
    }
}

/// Asks an echo until it answers, then until it does not, then until it does again.
const ASKS: &str = r#"
import json, os, socket, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(0.1)
sock.connect(("10.77.0.1", 5202))
deadline = time.time() + 50
def note(event):
    with open(os.environ["METRICS"], "a") as out:
        out.write(json.dumps({"t_ms": int(time.time() * 1000), "event": event}) + "\n")
def answered():
    try:
        sock.send(b"?0000")
        return bool(sock.recv(100))
    except OSError:
        time.sleep(0.05)
        return False
def wait(event, holds):
    while not holds():
        assert time.time() < deadline, event
    note(event)
wait("reached", answered)
wait("cut", lambda: not any([answered() for _ in range(4)]))
wait("healed", answered)
for _ in range(20):
    sock.send(b".0000")
"#;

#[test]
fn a_partition_cuts_and_heals() {
    let Some(_turn) = turn() else { return };
    let mut of = scenario(vec![
        probe("asked", "echo"),
        node("asks", &["python3", "-c", ASKS]),
    ]);
    let once = |event: &str, action| {
        let condition = Condition {
            nodes: vec![1],
            event: event.into(),
            field: None,
        };
        Event {
            when: When::After(condition, Duration::ZERO),
            action,
        }
    };
    of.events = vec![
        once("reached", Action::Partition(vec![vec![0]])),
        once("cut", Action::Heal),
    ];
    let record = run(&of);
    metric(&record, 1, "healed");
    let carried = record.traffic.last().unwrap();
    assert!(carried.pairs.iter().any(|pair| pair.dropped > 0));
    let what: Vec<&str> = record.marks.iter().map(|mark| mark.what.as_str()).collect();
    assert_eq!(what[..2], ["partition", "heal"]);
}

/// Counts its starts in its own folder, then stays.
const STAYS: &str = r#"n=$(($(cat $NODE_DIR/n 2>/dev/null) + 1)); echo $n > $NODE_DIR/n
echo "{\"t_ms\":$(date +%s%3N),\"event\":\"life\",\"n\":$n}" >> $METRICS; sleep 1000 & wait"#;

fn life(n: f64) -> Condition {
    Condition {
        nodes: vec![0],
        event: "life".into(),
        field: Some(("n".into(), Comparison::AtLeast, n)),
    }
}

#[test]
fn a_killed_node_is_restarted_with_what_it_had_on_disk() {
    let Some(_turn) = turn() else { return };
    let mut of = scenario(vec![shell("stays", STAYS)]);
    let after = |ms, action| Event {
        when: When::After(life(1.0), Duration::from_millis(ms)),
        action,
    };
    of.events = vec![
        after(100, Action::Kill(vec![0])),
        after(500, Action::Restart(vec![0])),
    ];
    of.end.exit = false;
    of.end.when = Some(life(2.0));
    let record = run(&of);
    let lives: Vec<f64> = record.nodes[0]
        .metrics
        .iter()
        .filter_map(|line| line.number("n"))
        .collect();
    assert_eq!(lives, [1.0, 2.0]);
    assert_eq!(record.nodes[0].lives.len(), 2);
    assert!(record.nodes[0].lives[0][1] < record.nodes[0].lives[1][0]);
    let what: Vec<&str> = record.marks.iter().map(|mark| mark.what.as_str()).collect();
    assert_eq!(what, ["kill", "restart"]);
}

#[test]
fn a_program_that_is_asked_to_leave_may_do_so_in_its_own_way() {
    let Some(_turn) = turn() else { return };
    let script = r#"trap 'echo "{\"t_ms\":$(date +%s%3N),\"event\":\"left\"}" >> $METRICS; exit 0' INT
echo "{\"t_ms\":$(date +%s%3N),\"event\":\"ready\"}" >> $METRICS; while :; do sleep 0.05; done"#;
    let mut of = scenario(vec![shell("leaves", script)]);
    let ready = Condition {
        nodes: vec![0],
        event: "ready".into(),
        field: None,
    };
    of.events = vec![Event {
        when: When::After(ready, Duration::ZERO),
        action: Action::Leave(vec![0]),
    }];
    let record = run(&of);
    metric(&record, 0, "left");
    assert_eq!(record.marks.last().unwrap().detail, "status 0");
}

#[test]
fn a_cpu_share_is_what_a_node_gets() {
    let Some(_turn) = turn() else { return };
    let mut of = scenario(vec![probe("slow", "spin --seconds 2")]);
    of.nodes[0].cpu = Some(0.2);
    let record = run(&of);
    if !record.not_applied.is_empty() {
        eprintln!("skipped: {:?}", record.not_applied);
        return;
    }
    let share = metric(&record, 0, "spin").number("cpu_share").unwrap();
    assert!((0.1..0.25).contains(&share), "{share}");
    let used = record.nodes[0].usage.last().unwrap();
    assert!((0.2..0.8).contains(&used.cpu_s), "{used:?}");
}

#[test]
fn a_cpu_share_that_an_event_sets_holds_for_what_runs_already() {
    let Some(_turn) = turn() else { return };
    let mut of = scenario(vec![probe("slowed", "spin --seconds 3")]);
    of.events = vec![Event {
        when: When::At(Duration::from_millis(500)),
        action: Action::SetCpu {
            nodes: vec![0],
            share: 0.1,
        },
    }];
    let record = run(&of);
    if !record.not_applied.is_empty() {
        eprintln!("skipped: {:?}", record.not_applied);
        return;
    }
    // Half a second of up to one core, the rest of a tenth.
    let share = metric(&record, 0, "spin").number("cpu_share").unwrap();
    assert!((0.05..0.4).contains(&share), "{share}");
    let used = record.nodes[0].usage.last().unwrap();
    assert!((0.2..1.5).contains(&used.cpu_s), "{used:?}");
}

#[test]
fn a_node_that_wants_more_memory_than_it_has_dies_and_shows_its_tail() {
    let Some(_turn) = turn() else { return };
    let script =
        "import sys; print('before', file=sys.stderr, flush=True); x = bytearray(400 << 20)";
    let mut of = scenario(vec![node("greedy", &["python3", "-c", script])]);
    of.nodes[0].memory = Some(64 << 20);
    let record = run(&of);
    if !record.not_applied.is_empty() {
        eprintln!("skipped: {:?}", record.not_applied);
        return;
    }
    let exit = record.marks.last().unwrap();
    assert_eq!(exit.what, "exit");
    assert!(exit.detail.starts_with("killed by signal 9"), "{exit:?}");
    assert!(exit.detail.contains("before"), "{exit:?}");
}

#[test]
fn a_program_that_fails_shows_its_status_and_the_tail_of_its_log() {
    let Some(_turn) = turn() else { return };
    let out = tempfile::tempdir().unwrap();
    let of = scenario(vec![
        shell("fails", "seq 100; echo the reason >&2; exit 3"),
        node("missing", &["no-such-program"]),
    ]);
    let mut said = Vec::new();
    let mut progress = |_: f64, line: &str| said.push(line.to_owned());
    let record = testbed(out.path()).run(&of, &mut progress).unwrap();
    let detail = |rank| {
        let mark = record.marks.iter().find(|mark| mark.nodes == [rank]);
        mark.unwrap().detail.clone()
    };
    assert!(detail(0).starts_with("status 3\n"), "{}", detail(0));
    assert!(detail(0).ends_with("the reason") && !detail(0).contains("\n50\n"));
    assert!(
        detail(1).contains("cannot start no-such-program"),
        "{}",
        detail(1)
    );
    assert!(
        said.iter().any(|line| line.contains("| the reason")),
        "{said:?}"
    );
    assert!(out.path().join("fails.log").exists());
}

#[test]
fn more_cpu_than_there_is_is_refused_before_anything_starts() {
    let mut of = scenario(vec![shell("a", "true"), shell("b", "true")]);
    for node in &mut of.nodes {
        node.cpu = Some(1000.0);
    }
    let out = tempfile::tempdir().unwrap();
    let refused = testbed(out.path()).run(&of, &mut |_, _| {});
    assert!(matches!(refused, Err(LabError::Overbooked { asked, .. }) if asked == 2000.0));
}

#[test]
fn a_run_that_its_programs_do_not_end_is_ended_and_says_so() {
    let Some(_turn) = turn() else { return };
    let mut of = scenario(vec![shell("stays", "sleep 1000")]);
    of.end.after = Duration::from_secs(1);
    let record = run(&of);
    assert_eq!(record.marks.last().unwrap().what, "deadline");
    let [from, to] = record.nodes[0].lives[0];
    assert!(from < 0.9 && to >= 1.0, "{from} {to}");
}

#[test]
fn a_stopped_node_goes_on_where_it_was() {
    let Some(_turn) = turn() else { return };
    let script = r#"for n in $(seq 30); do
echo "{\"t_ms\":$(date +%s%3N),\"event\":\"beat\",\"n\":$n}" >> $METRICS; sleep 0.05; done"#;
    let mut of = scenario(vec![shell("beats", script)]);
    let third = Condition {
        nodes: vec![0],
        event: "beat".into(),
        field: Some(("n".into(), Comparison::AtLeast, 3.0)),
    };
    let after = |ms, action| Event {
        when: When::After(third.clone(), Duration::from_millis(ms)),
        action,
    };
    of.events = vec![
        after(0, Action::Stop(vec![0])),
        after(1500, Action::Continue(vec![0])),
    ];
    let record = run(&of);
    let beats: Vec<f64> = record.nodes[0].metrics.iter().map(|line| line.t).collect();
    assert_eq!(beats.len(), 30);
    let longest = beats
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .reduce(f64::max);
    assert!(longest.unwrap() > 1.2, "{beats:?}");
}

#[test]
fn a_node_joins_when_an_event_says_so_and_its_line_may_change() {
    let Some(_turn) = turn() else { return };
    let mut of = scenario(vec![
        probe("asked", "echo"),
        probe(
            "joins",
            "round-trips --to 10.77.0.1 --count 30 --interval-ms 2",
        ),
    ]);
    of.nodes[1].start = None;
    let soon = |action| Event {
        when: When::At(Duration::from_millis(300)),
        action,
    };
    of.events = vec![
        soon(Action::SetLine {
            nodes: vec![0],
            up: Some(delay(20).profile),
            down: None,
        }),
        soon(Action::Join(vec![1])),
    ];
    let record = run(&of);
    assert!(record.nodes[1].lives[0][0] >= 0.3);
    let p50 = metric(&record, 1, "round-trips").number("p50_ms").unwrap();
    assert!((19.5..60.0).contains(&p50), "{p50}");
}
