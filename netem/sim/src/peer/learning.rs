//! What a peer takes from the beats of the others while it trains, as the node does: copies of better replicas, a commit rate, and
//! the other side's work after a partition.

use skein_gossip::agreement::Input;
use skein_gossip::guide::Output;
use skein_gossip::ids::PeerId;
use skein_gossip::knowledge::merge;
use skein_gossip::knowledge::sketch::Sketch;
use skein_gossip::membership::FEW;
use skein_gossip::pacing::momentum;
use skein_node::run::driver::PACE_EVERY;
use skein_node::run::journal::{self, Entry};
use skein_node::run::trainer::{HELD_OUT, SKETCH_EVERY, SKETCH_ONE_IN};

use super::fetching::{ASK_BYTES, Ask};
use super::training::AtBoundary;
use super::{Effect, Message, Peer, tick};
use crate::learner::State;
use crate::stream::Lane;
use skein_netem::link::Nanos;

impl Peer {
    /// Looks at what the others said, and says what they may plan with.
    pub(super) fn look_around(&mut self, now: Nanos) {
        self.pace.fit = self.power.fit();
        self.pace.search = self.guide.search_state();
        let n_members = self.agreement.view().map_or(0, |view| view.members.len());
        if n_members > FEW {
            self.pace.sketch = None;
        }
        for output in self.guide.look(tick(now), &self.agreement, &self.pace) {
            match output {
                Output::Learn { from } => {
                    self.learning = Some(from);
                    self.effects.push(Effect::Send {
                        to: from,
                        lane: Lane::Control,
                        bytes: ASK_BYTES,
                        message: Message::Ask(Ask::Replica { from_step: 0 }),
                    });
                }
                Output::GiveUp { from } => {
                    self.learning = self.learning.filter(|teacher| *teacher != from);
                }
                Output::Rate {
                    commits,
                    period,
                    implicit_momentum,
                } => {
                    self.trainer.commits.target(tick(now), commits, period);
                    let base = self.job.file.train.optimiser.momentum().unwrap_or(0.0);
                    let left = momentum::explicit_left(base, implicit_momentum);
                    self.learner.set_momentum(left);
                }
            }
        }
        self.input(now, Input::Pace(Box::new(self.pace.clone())));
    }

    /// Says how links and batches stand, as often as the node does.
    pub(super) fn write_pace(&mut self, now: Nanos) {
        let is_due = u128::from(now - self.pace_written) >= PACE_EVERY.as_nanos();
        let Some(view) = self.agreement.view().filter(|_| is_due).cloned() else {
            return;
        };
        // Among hundreds it would be most of the record.
        if view.members.len() > FEW {
            return;
        }
        self.pace_written = now;
        let batch = view.member(self.id).map_or(0, |member| member.batch);
        let share_frac = f64::from(batch) / view.global_batch().max(1) as f64;
        let waiting_us = self.trainer.work.waiting_us;
        let entry = journal::pace(
            self.exchange.stats(),
            share_frac,
            self.pace.commits,
            waiting_us,
        );
        self.write(now, &entry);
    }

    pub(super) fn sketch_if_due(&mut self, now: Nanos) {
        let every = SKETCH_EVERY.as_nanos() as Nanos;
        let is_due = self.sketched.is_none_or(|at| now - at >= every);
        if is_due {
            self.sketched = Some(now);
            let parameters = self.learner.parameters();
            let sketch = Sketch::of(parameters, self.job.file.seed, SKETCH_ONE_IN);
            self.pace.sketch = sketch.or(self.pace.sketch);
        }
    }

    /// The replica of a peer that it wanted to learn from is here.
    pub(super) fn on_taught(&mut self, now: Nanos, from: PeerId, state: State) {
        self.learning = None;
        if let Some((weight, gated)) = self.guide.fetched(tick(now), from, true) {
            let learn = AtBoundary::Learn {
                state,
                from,
                weight,
                gated,
            };
            self.obey_at_boundary(now, learn);
        }
    }

    pub(super) fn learn(
        &mut self,
        now: Nanos,
        other: &State,
        from: PeerId,
        weight: f32,
        gated: bool,
    ) {
        let rows = (self.job.file.evaluate.samples as usize).min(HELD_OUT);
        let own = self.learner.state();
        let loss = |peer: &mut Self| peer.learner.evaluate(rows).map(|seen| seen.loss);
        let tried = loss(self).and_then(|own_loss| {
            self.learner.move_towards(&own, other, weight)?;
            Ok((own_loss, loss(self)?))
        });
        // Two looks, which the next step pays for.
        self.trainer.owed_us += 2.0 * self.job.costs.us_per_look * rows as f64;
        let (own_loss, merged_loss) = tried.unwrap_or((0.0, f64::INFINITY));
        let is_better =
            merged_loss < own_loss || (!own_loss.is_finite() && merged_loss.is_finite());
        let moved = if is_better || !gated { weight } else { 0.0 };
        if moved == 0.0 && self.learner.load(&own).is_err() {
            tracing::warn!("the own state cannot be loaded again");
        }
        self.learner.move_average(other, moved);
        self.trainer.local.forget();
        self.guide
            .judged(tick(now), own_loss as f32, merged_loss as f32);
        self.write(
            now,
            &Entry::Learnt {
                from: from.short(),
                own_loss: own_loss.is_finite().then_some(own_loss),
                merged_loss: merged_loss.is_finite().then_some(merged_loss),
                moved,
            },
        );
    }

    /// After a partition: the winning side's state, the mean of both by samples, or the own, whichever is best.
    pub(super) fn put_together(
        &mut self,
        now: Nanos,
        winner: &State,
        winner_samples: u64,
        own_samples: u64,
    ) -> Result<(), String> {
        let rows = (self.job.file.evaluate.samples as usize).min(HELD_OUT);
        let own = self.learner.state();
        let since = winner_samples.saturating_sub(self.agreement.parted_at());
        let own_share = merge::losers_share(since, own_samples);
        let loser = self.learner.evaluate(rows)?.loss as f32;
        self.learner.move_towards(&own, winner, 1.0)?;
        let taken = self.learner.evaluate(rows)?.loss as f32;
        self.learner.move_towards(&own, winner, 1.0 - own_share)?;
        let mean = self.learner.evaluate(rows)?.loss as f32;
        self.trainer.owed_us += 3.0 * self.job.costs.us_per_look * rows as f64;
        let losses = merge::Losses {
            winner: taken,
            loser,
            mean,
        };
        let choice = merge::pick(losses, since, own_samples).choice;
        let moved = choice.toward_winner(own_share);
        self.learner.move_towards(&own, winner, moved)?;
        let share = 1.0 - moved;
        self.write(
            now,
            &Entry::Merged {
                samples: own_samples,
                share,
            },
        );
        Ok(())
    }
}
