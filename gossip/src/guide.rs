//! What one peer takes from the beats of the others while it trains: whom to learn from, and how often to commit.
//!
//! Composes [`knowledge`](crate::knowledge) and [`pacing`](crate::pacing) over an [`Agreement`]. In: a look every half second or so, what came
//! of fetches. Out: [`Output`]s. The search for a commit rate is made by the steward of the moment and is in its beats, so the next steward
//! goes on with it.

use std::time::Duration;

use crate::agreement::Agreement;
use crate::ids::PeerId;
use crate::knowledge::drift::{self, Watch};
use crate::knowledge::losses::{self, Report};
use crate::knowledge::pull::{self, Arrival, Pulls, Verdict};
use crate::message::{Beat, Pace, Standing};
use crate::pacing::momentum::{self, Cadence};
use crate::pacing::pacer::commits_wished;
use crate::pacing::search::state::SearchState;
use crate::pacing::search::{self, Search};
use crate::time::Tick;

/// Steps that a beat's training loss is the mean of, about.
const LOSS_STEPS: u64 = 20;
/// Members whose sketches are compared at most: the work grows with the square.
const MOST_COMPARED: usize = 48;

/// What is wanted of the guide.
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// Learning from the best; none: never.
    pub pulls: Option<pull::Settings>,
    /// Refreshing a replica that has drifted away.
    pub refresh: Option<drift::Settings>,
    /// Searching for a commit rate.
    pub search: Option<search::Settings>,
}

/// What the driver must do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Output {
    /// Fetch the replica of this peer in the background, then report [`Guide::fetched`].
    Learn {
        /// Whose.
        from: PeerId,
    },
    /// Drop what was fetched of it.
    GiveUp {
        /// Whose.
        from: PeerId,
    },
    /// Commit so that all have made `commits` by the end of `period` from now.
    Rate {
        /// Commits of each member since the job began.
        commits: u64,
        /// The period.
        period: Duration,
        /// The momentum that updates as old as this make by themselves, 0 to 1.
        implicit_momentum: f64,
    },
}

/// One peer's guide.
#[derive(Debug)]
pub struct Guide {
    me: PeerId,
    config: Config,
    pulls: Option<Pulls>,
    watch: Option<Watch>,
    /// What the own last look said, when it was last considered.
    looked: Option<f32>,
    /// A refresh that is under way.
    refreshing: Option<PeerId>,
    search: Option<Search>,
    /// The state of the steward's search, as it was last heard.
    heard: Option<SearchState>,
    /// When the present period began, and at which rate.
    period: Option<(Tick, u32)>,
    survey: drift::Survey,
}

impl Guide {
    /// `seed`: for the moments at which this peer's turns come.
    pub fn new(config: Config, me: PeerId, seed: u64, now: Tick) -> Self {
        Self {
            me,
            config,
            pulls: config
                .pulls
                .map(|settings| Pulls::new(settings, now, me, seed)),
            watch: config.refresh.map(|settings| Watch::new(settings, me)),
            looked: None,
            refreshing: None,
            search: None,
            heard: None,
            period: None,
            survey: drift::Survey::default(),
        }
    }

    /// Looks at what all have said. `own`: what this peer says.
    pub fn look(&mut self, now: Tick, agreement: &Agreement, own: &Pace) -> Vec<Output> {
        let beat = agreement.own_beat();
        if beat.standing != Standing::Training {
            return Vec::new();
        }
        let Some(view) = agreement.view() else {
            return Vec::new();
        };
        let heard = agreement.heard().iter();
        let others: Vec<(PeerId, &Beat)> = heard
            .filter(|(peer, beat)| view.contains(**peer) && beat.standing == Standing::Training)
            .map(|(peer, beat)| (*peer, &**beat))
            .collect();
        let mut outputs = Vec::new();
        self.look_for_teachers(now, &beat, &others, own, &mut outputs);
        self.look_at_rates(now, agreement.steward(), &beat, &others, own, &mut outputs);
        outputs
    }

    fn look_for_teachers(
        &mut self,
        now: Tick,
        beat: &Beat,
        others: &[(PeerId, &Beat)],
        own: &Pace,
        outputs: &mut Vec<Output>,
    ) {
        let mine = report(beat);
        // A look of long ago would make a peer that looks rarely seem far behind.
        let has_looked = own.held_out.is_some() && own.held_out != self.looked;
        self.looked = own.held_out;
        if let Some(pulls) = &mut self.pulls
            && (has_looked || pulls.is_busy())
        {
            let claims = others.iter();
            let reports: Vec<(PeerId, Report)> = claims
                .map(|(peer, beat)| (*peer, claim(beat, beat.pace.held_out)))
                .collect();
            match pulls.poll(now, claim(beat, own.held_out), &reports) {
                Some(pull::Output::Pull { from }) => outputs.push(Output::Learn { from }),
                Some(pull::Output::GiveUp { from }) => outputs.push(Output::GiveUp { from }),
                None => {}
            }
        }
        let Some(watch) = &mut self.watch else { return };
        let sketched = others
            .iter()
            .take(MOST_COMPARED)
            .filter_map(|(peer, beat)| {
                Some(drift::Member {
                    peer: *peer,
                    sketch: beat.pace.sketch?,
                    report: report(beat),
                })
            });
        let mut members: Vec<drift::Member> = sketched.collect();
        let Some(sketch) = own.sketch.filter(|_| !members.is_empty()) else {
            return;
        };
        members.push(drift::Member {
            peer: self.me,
            sketch,
            report: mine,
        });
        members.sort_by_key(|member| member.peer);
        let look = watch.look(now, &members);
        self.survey = look.survey;
        if let Some(from) = look.refresh_from {
            self.refreshing = Some(from);
            outputs.push(Output::Learn { from });
        }
    }

    fn look_at_rates(
        &mut self,
        now: Tick,
        steward: PeerId,
        beat: &Beat,
        others: &[(PeerId, &Beat)],
        own: &Pace,
        outputs: &mut Vec<Output>,
    ) {
        let Some(settings) = self.config.search else {
            return;
        };
        self.hear(steward, others);
        let per_period = if steward == self.me {
            let mut reports: Vec<Report> = others.iter().map(|(_, beat)| report(beat)).collect();
            reports.push(report(beat));
            let search = self.search.get_or_insert_with(|| {
                let heard = self.heard.clone();
                let resumed = heard.and_then(|state| Search::resume(settings, now, state).ok());
                resumed.unwrap_or_else(|| Search::new(settings, now, 1))
            });
            search.advance(now, losses::mean(&reports), None)
        } else {
            self.search = None;
            self.heard.as_ref().map_or(1, SearchState::commits)
        };
        let is_over =
            |(began, rate): (Tick, u32)| now.since(began) >= settings.period || rate != per_period;
        if self.period.is_none_or(is_over) {
            self.period = Some((now, per_period));
            let mut made: Vec<u64> = others.iter().map(|(_, beat)| beat.pace.commits).collect();
            made.push(own.commits);
            let all = others.iter().map(|(_, beat)| *beat);
            let cadences = all.chain([beat]).filter_map(|beat| {
                Some(Cadence {
                    commits: f64::from(per_period),
                    step_s: beat.pace.fit?.step_us(beat.batch) / 1e6,
                })
            });
            let cadences: Vec<Cadence> = cadences.collect();
            outputs.push(Output::Rate {
                commits: commits_wished(&made, per_period),
                period: settings.period,
                implicit_momentum: momentum::implicit(settings.period, &cadences),
            });
        }
    }

    /// Keeps the state of the steward's search. The others only repeat what they heard of it, and are asked where there is no
    /// steward to hear: then the middle one counts, which one liar cannot choose.
    fn hear(&mut self, steward: PeerId, others: &[(PeerId, &Beat)]) {
        let sound = |beat: &&Beat| {
            let state = beat.pace.search.as_ref();
            state.filter(|state| state.validate().is_ok()).cloned()
        };
        let of_steward = others.iter().find(|(peer, _)| *peer == steward);
        if let Some(state) = of_steward.and_then(|(_, beat)| sound(beat)) {
            self.heard = Some(state);
        } else if self.heard.is_none() || (steward == self.me && self.search.is_none()) {
            let mut states: Vec<_> = others.iter().map(|(_, beat)| sound(beat)).collect();
            states.extend(self.heard.take().map(Some));
            states.sort_by_key(|state| state.as_ref().map(|state| state.turn));
            let middle = states.len().saturating_sub(1) / 2;
            self.heard = states.into_iter().nth(middle).flatten();
        }
    }

    /// The replica of `from` is here, or (`whole` false) could not be fetched. What to do with it: move towards it by a weight, and
    /// whether only if held-out samples are in favour. None: nothing.
    pub fn fetched(&mut self, now: Tick, from: PeerId, whole: bool) -> Option<(f32, bool)> {
        if self.refreshing == Some(from) {
            self.refreshing = None;
            return whole.then_some((1.0, true));
        }
        let pulls = self.pulls.as_mut()?;
        let weight = self.config.pulls.map_or(0.0, |settings| settings.weight);
        match pulls.fetched(now, from, whole) {
            Arrival::Judge => Some((weight, true)),
            Arrival::Merge { weight } => Some((weight, false)),
            Arrival::Ignore => None,
        }
    }

    /// The own loss on held-out samples, and that with the candidate merged.
    pub fn judged(&mut self, now: Tick, own_loss: f32, merged_loss: f32) -> Option<Verdict> {
        let pulls = self.pulls.as_mut()?;
        Some(pulls.judged(now, own_loss, merged_loss))
    }

    /// What the beats of this peer are to say of the search: its own, or what it would go on with.
    pub fn search_state(&self) -> Option<SearchState> {
        match &self.search {
            Some(search) => Some(search.state().clone()),
            None => self.heard.clone(),
        }
    }

    /// Where all replicas were at the last look.
    pub fn survey(&self) -> &drift::Survey {
        &self.survey
    }

    /// What each peer's candidates were worth.
    pub fn dealings(&self) -> impl Iterator<Item = (PeerId, &pull::Dealings)> {
        self.pulls.iter().flat_map(Pulls::dealings)
    }
}

/// What whom to learn from is chosen by: the loss on held-out samples. The training loss is lowest for whoever knows only the classes that
/// it has, where peers have unlike data.
fn claim(beat: &Beat, held_out: Option<f32>) -> Report {
    Report {
        train_loss: held_out.unwrap_or(f32::NAN),
        ..report(beat)
    }
}

fn report(beat: &Beat) -> Report {
    Report {
        train_loss: beat.train_loss,
        n_samples: LOSS_STEPS * u64::from(beat.batch),
    }
}
