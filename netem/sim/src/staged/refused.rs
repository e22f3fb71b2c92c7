//! What of a scenario is not simulated for jobs with stages.

use skein_gossip::pipeline::agreement::Cutting;
use skein_netem::scenario::{Action, Scenario};
use skein_node::job::JobFile;

/// Refuses what is not simulated.
pub(super) fn can_be(scenario: &Scenario, file: &JobFile) -> Result<(), String> {
    let lab = "run it with --engine lab";
    let lines = scenario
        .nodes
        .iter()
        .flat_map(|node| [&node.up, &node.down]);
    let mut lines = lines.chain(scenario.pairs.iter().map(|pair| &pair.line));
    if lines.any(|line| line.trace.is_some()) {
        return Err(format!(
            "lines that change over time are not simulated for jobs with stages: {lab}"
        ));
    }
    let late = scenario.nodes.iter();
    let mut late = late.filter(|node| node.start.is_none_or(|start| !start.is_zero()));
    if let Some(node) = late.next() {
        let name = &node.name;
        return Err(format!(
            "node {name} starts late, and nobody joins a simulated job with stages: {lab}"
        ));
    }
    if matches!(
        file.strategy.pipeline.recut,
        Cutting::Absorb | Cutting::Restart
    ) {
        return Err(format!(
            "recut = \"absorb\" and \"restart\" are not simulated: {lab}, or compare with sim.recovery = \"redistribute\""
        ));
    }
    let is_known =
        |action: &Action| matches!(action, Action::Kill(_) | Action::Stop(_) | Action::Leave(_));
    match scenario.events.iter().all(|event| is_known(&event.action)) {
        true => Ok(()),
        false => Err(format!(
            "of events, jobs with stages are simulated with kill, stop and leave: {lab}"
        )),
    }
}
