//! States that are kept, and that are loaded from others.

use skein_gossip::agreement::Input;
use skein_gossip::ids::PeerId;
use skein_node::job::Every;
use skein_node::run::journal::Entry;

use super::{Disk, Fetching, Peer};
use crate::learner::State;
use skein_netem::link::Nanos;

impl Peer {
    pub(super) fn save_if_due(&mut self, now: Nanos) {
        let (at, step) = self.saved;
        let is_due = match self.job.file.checkpoint.every {
            Every::Time(every) => u128::from(now - at) >= every.as_nanos(),
            Every::Steps(every) => self.trainer.step >= step + every,
        };
        if is_due {
            self.save(now);
        }
    }

    pub(super) fn save(&mut self, now: Nanos) {
        self.saved = (now, self.trainer.step);
        self.disk = Some(Disk {
            state: self.learner.state(),
            step: self.trainer.step,
            samples: self.agreement.mesh_samples(),
        });
        let step = self.trainer.step;
        self.write(now, &Entry::Checkpoint { step });
    }

    pub(super) fn restore(
        &mut self,
        now: Nanos,
        state: &State,
        (step, samples): (u64, u64),
        from: PeerId,
        began: Nanos,
    ) {
        let unmerged = std::mem::take(&mut self.unmerged);
        let restored = match unmerged > 0 && !self.is_synchronous() {
            true => self.put_together(now, state, samples, unmerged),
            false => self.learner.load(state),
        };
        self.trainer.local.forget();
        self.learner.forget_average();
        if let Err(reason) = restored {
            self.write(now, &Entry::FetchFailed { reasons: &[reason] });
            return self.retry_later();
        }
        self.trainer.step = step;
        self.write(
            now,
            &Entry::Synced {
                donors: vec![from.short()],
                step,
                bytes: state.bytes() as u64,
                seconds: (now - began) as f64 / 1e9,
            },
        );
        // The end may have come meanwhile, and what is fetched now may be its weights.
        if matches!(self.fetching, Fetching::Replica { .. }) {
            self.fetching = Fetching::Nothing;
        }
        self.input(now, Input::Synced { step });
    }
}
