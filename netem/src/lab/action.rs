//! What an event does.

use nix::sys::signal::Signal;

use super::campaign::Campaign;
use super::{LabError, machine};
use crate::link::NodeIndex;
use crate::record::Progress;
use crate::scenario::Action;

impl Campaign<'_> {
    /// Does it, and notes that.
    pub(super) fn act(&mut self, action: &Action, progress: Progress<'_>) -> Result<(), LabError> {
        let now = self.now();
        let mut nodes = action.nodes().map(<[_]>::to_vec).unwrap_or_default();
        nodes.retain(|rank| self.nodes[*rank].may(action));
        let mut detail = String::new();
        let what = match action {
            Action::Kill(_) => {
                nodes.iter().for_each(|rank| self.nodes[*rank].kill(now));
                "kill"
            }
            Action::Stop(_) => {
                self.signal(&nodes, Signal::SIGSTOP, true);
                "stop"
            }
            Action::Continue(_) => {
                self.signal(&nodes, Signal::SIGCONT, true);
                "continue"
            }
            Action::Leave(_) => {
                self.signal(&nodes, Signal::SIGINT, false);
                "leave"
            }
            Action::Restart(_) => {
                for rank in &nodes {
                    self.nodes[*rank].kill(now);
                    self.begin(*rank)?;
                }
                "restart"
            }
            Action::Join(_) => {
                for rank in &nodes {
                    self.begin(*rank)?;
                }
                "join"
            }
            Action::Partition(groups) => {
                self.switch.fabric().partition(groups);
                let name = |rank: &NodeIndex| self.nodes[*rank].name.as_str();
                let group = |group: &Vec<NodeIndex>| group.iter().map(name).collect::<Vec<_>>();
                let groups: Vec<String> = groups.iter().map(|of| group(of).join(" ")).collect();
                detail = groups.join(" | ");
                "partition"
            }
            Action::Heal => {
                self.switch.fabric().heal();
                "heal"
            }
            Action::SetLine { up, down, .. } => {
                for rank in &nodes {
                    let mut fabric = self.switch.fabric();
                    self.lines.set_node(&mut fabric, *rank, *up, *down);
                }
                "line"
            }
            Action::SetPair { from, to, profile } => {
                let mut fabric = self.switch.fabric();
                self.lines.set_pair(&mut fabric, *from, *to, *profile);
                detail = format!("{} to {}", self.nodes[*from].name, self.nodes[*to].name);
                "pair"
            }
            Action::SetCpu { share, .. } => {
                let mut shares = self.shares.clone();
                nodes.iter().for_each(|rank| shares[*rank] = Some(*share));
                // A run that is under way is worth more than one of its events.
                match machine::check_shares(shares.iter().flatten().copied()) {
                    Ok(()) => {
                        self.shares = shares;
                        nodes
                            .iter()
                            .for_each(|rank| self.limits.set_cpu(*rank, *share));
                    }
                    Err(error) => self.limits.not_applied.push(error.to_string()),
                }
                detail = format!("{share} cores");
                "cpu"
            }
        };
        // It may find nobody to happen to.
        if action.nodes().is_some() && nodes.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = nodes
            .iter()
            .map(|rank| self.nodes[*rank].name.as_str())
            .collect();
        let words = [what, &names.join(" "), &detail];
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        progress(now, &words.join(" "));
        self.mark_at(now, what, nodes, detail);
        Ok(())
    }

    fn signal(&mut self, nodes: &[NodeIndex], signal: Signal, all: bool) {
        for rank in nodes {
            self.nodes[*rank].signal(signal, all);
        }
    }
}
