//! How fast each node with a CPU share is alone, and while all are at work: a campaign is worth nothing on a machine where these differ.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::limits::Limits;
use super::{Lab, LabError, hidden, machine};
use crate::link::NodeIndex;
use crate::probe;
use crate::record::Progress;
use crate::scenario::Scenario;

/// How long a node is measured alone, and all together.
const ALONE: Duration = Duration::from_secs(1);
const TOGETHER: Duration = Duration::from_secs(3);
/// Measurements before it is judged: a moment of other load is no fault of the machine.
const TRIES: usize = 3;
/// Most that speeds may differ, of the speed alone.
const TOLERANCE: f64 = 0.05;

/// How fast a node is, in work units of the `spin` probe per second.
#[derive(Clone, Debug, PartialEq)]
pub struct Speed {
    /// Its name.
    pub node: String,
    /// While nothing else runs.
    pub alone: f64,
    /// While all nodes are at work.
    pub together: f64,
}

impl Speed {
    /// How much slower it is together with the others, of its speed alone; below zero: faster.
    pub fn loss(&self) -> f64 {
        1.0 - self.together / self.alone
    }

    fn differs(&self) -> bool {
        let loss = self.loss().abs();
        // No number: something could not be measured.
        loss > TOLERANCE || loss.is_nan()
    }
}

pub(super) fn measure(
    lab: &Lab,
    scenario: &Scenario,
    progress: Progress<'_>,
) -> Result<Vec<Speed>, LabError> {
    machine::check_shares(scenario.nodes.iter().filter_map(|node| node.cpu))?;
    let limits = Limits::apply(lab, &scenario.nodes)?;
    let mut bench = Bench {
        lab,
        scenario,
        limits,
    };
    let mut judged = bench.once()?;
    for again in 1..TRIES {
        let slow = judged.iter().filter(|speed| speed.differs()).count();
        if slow == 0 {
            break;
        }
        progress(
            0.0,
            &format!("{slow} nodes differ in speed alone and together; measuring again ({again})"),
        );
        for (best, new) in judged.iter_mut().zip(bench.once()?) {
            // Load of others only takes away: the faster figure is the truer one.
            best.alone = best.alone.max(new.alone);
            best.together = best.together.max(new.together);
        }
    }
    judge(judged)
}

fn judge(judged: Vec<Speed>) -> Result<Vec<Speed>, LabError> {
    let figures: Vec<String> = judged
        .iter()
        .filter(|speed| speed.differs())
        .map(|speed| {
            format!(
                "{} {:.0} alone, {:.0} together ({:+.1} %)",
                speed.node,
                speed.alone,
                speed.together,
                -100.0 * speed.loss()
            )
        })
        .collect();
    match figures.is_empty() {
        true => Ok(judged),
        false => Err(LabError::SpeedsDiffer {
            figures: figures.join(", "),
        }),
    }
}

struct Bench<'a> {
    lab: &'a Lab,
    scenario: &'a Scenario,
    limits: Limits,
}

impl Bench<'_> {
    fn once(&mut self) -> Result<Vec<Speed>, LabError> {
        // Only a node with a share is promised a speed.
        let nodes = self.scenario.nodes.iter().enumerate();
        let ranks: Vec<NodeIndex> = nodes
            .filter(|(_, node)| node.cpu.is_some())
            .map(|(rank, _)| rank)
            .collect();
        let mut alone = Vec::new();
        for rank in &ranks {
            alone.extend(self.spin(&[*rank], ALONE)?);
        }
        let together = self.spin(&ranks, TOGETHER)?;
        let speeds = ranks.iter().zip(alone).zip(together);
        let speed = |((rank, alone), together): ((&NodeIndex, f64), f64)| Speed {
            node: self.scenario.nodes[*rank].name.clone(),
            alone,
            together,
        };
        Ok(speeds.map(speed).collect())
    }

    /// The speeds of these nodes while they all work.
    fn spin(&self, ranks: &[NodeIndex], time: Duration) -> Result<Vec<f64>, LabError> {
        let mut running = Vec::new();
        for rank in ranks {
            running.push(Running(self.start(*rank, time)?));
        }
        running.iter_mut().map(Running::speed).collect()
    }

    fn start(&self, rank: NodeIndex, time: Duration) -> Result<Child, LabError> {
        let threads = self.scenario.nodes[rank].threads.max(1);
        let mut program = vec![self.lab.exe.display().to_string()];
        program.extend(probe::spin_args(time, threads));
        let args = hidden::init_args(&self.limits.procs(rank), &program);
        Command::new(&self.lab.exe)
            .args(args)
            .env_remove(probe::METRICS)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(LabError::failed("starting the spin probe"))
    }
}

/// A probe that runs. Dropping it ends it.
struct Running(Child);

impl Running {
    fn speed(&mut self) -> Result<f64, LabError> {
        let mut said = String::new();
        if let Some(mut out) = self.0.stdout.take() {
            let read = std::io::Read::read_to_string(&mut out, &mut said);
            read.map_err(LabError::failed("reading what the spin probe found"))?;
        }
        let found = said.lines().find_map(probe::spin_speed);
        found.ok_or_else(|| LabError::Failed {
            what: "measuring a node's speed".into(),
            source: std::io::Error::other(format!("the spin probe said {said:?}")),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(together: f64) -> Speed {
        Speed {
            node: "one".into(),
            alone: 100.0,
            together,
        }
    }

    #[test]
    fn a_machine_on_which_nodes_slow_each_other_down_is_refused_with_the_figures() {
        assert!(judge(vec![speed(95.5), speed(104.5)]).is_ok());
        for together in [94.0, 106.0, f64::NAN] {
            let refused = judge(vec![speed(100.0), speed(together)]);
            let said = refused.map_err(|error| error.to_string());
            assert!(
                said.is_err_and(|said| said.contains("one 100 alone")),
                "{together}"
            );
        }
    }
}
