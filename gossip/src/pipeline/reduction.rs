//! The gradients of a shared stage, added up between its hosts: who sends which piece to whom, and when a piece is complete.
//!
//! ```text
//! direct   own pieces ─▶ all others           all pieces of all here ─▶ added up in the order of the hosts
//! shards   own pieces ─▶ who adds them up ─ sum ─▶ all others        (piece c: host c modulo n)
//! ```
//!
//! Either way a value is added up in the order of the hosts, so all of them, and both ways, have the same bits; a ring adds in
//! another order for every piece and has 2 (n - 1) delays, at no fewer bytes than shards (Asteroid reduces in a ring).
//!
//! Bound: pieces of the step in work and of the next one, each once per host.

use std::collections::BTreeMap;
use std::ops::Range;

use super::frame::MAX_MICRO;
use super::plan::Reduction;

/// Values of a piece at most, or more where there would be too many: large enough that its head is nothing, small enough that adding up begins
/// while others are on their way.
const PIECE: usize = 1 << 18;

/// Why a piece is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Of a step that is not in work here.
    #[error("a piece of the gradient of step {step}, and {applied} are made here")]
    Step {
        /// Its step.
        step: u64,
        /// Steps made here.
        applied: u64,
    },
    /// Nobody sends it: no such piece, or not from there.
    #[error("nobody sends piece {piece} from there")]
    Piece {
        /// Its number.
        piece: u32,
    },
    /// It came before.
    #[error("a piece of a gradient came twice")]
    Twice,
}

/// What is to be done with pieces that are here. `P` is a frame's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece<P> {
    /// Add the others' pieces and the own one up, in the order of the hosts: one body per host, none in the own place. Where
    /// [`Adding::tells_sums`], the sum goes to all others.
    Add {
        /// Number of the piece.
        piece: u32,
        /// Bodies, by host.
        bodies: Vec<Option<P>>,
    },
    /// Take the sum that another made.
    Take {
        /// Number of the piece.
        piece: u32,
        /// The sum.
        body: P,
    },
}

/// The pieces of a step that are here: by piece and host, and the sums.
#[derive(Debug)]
struct Pieces<P> {
    parts: BTreeMap<(u32, usize), P>,
    sums: BTreeMap<u32, P>,
}

impl<P> Default for Pieces<P> {
    fn default() -> Self {
        Self {
            parts: BTreeMap::new(),
            sums: BTreeMap::new(),
        }
    }
}

/// Adding up in a group, seen from one of its hosts. See the module's header.
#[derive(Debug)]
pub struct Adding<P> {
    n: usize,
    me: usize,
    way: Reduction,
    /// Values of the gradient, and of a piece.
    len: usize,
    piece: usize,
    applied: u64,
    /// Of the step in work and the next one.
    steps: [Pieces<P>; 2],
    /// Pieces of the step in work that are not done; none before the own gradient is here.
    open: Option<u32>,
}

impl<P> Adding<P> {
    /// A gradient of `len` values among `n` hosts, of which this one is number `me`, after `applied` steps.
    pub fn new((me, n): (usize, usize), way: Reduction, len: usize, applied: u64) -> Self {
        // As many pieces for each, where each adds some up.
        let most = PIECE.max(len.div_ceil(MAX_MICRO as usize));
        let n_pieces = match way {
            Reduction::Direct => len.div_ceil(most),
            Reduction::Shards => n * len.div_ceil(n.max(1) * most),
        };
        Self {
            n,
            me,
            way,
            len,
            piece: len.div_ceil(n_pieces.max(1)).max(1),
            applied,
            steps: [Pieces::default(), Pieces::default()],
            open: None,
        }
    }

    /// Number of pieces.
    pub fn n_pieces(&self) -> u32 {
        self.len.div_ceil(self.piece) as u32
    }

    /// The values in a piece.
    pub fn values(&self, piece: u32) -> Range<usize> {
        let first = (piece as usize).saturating_mul(self.piece).min(self.len);
        first..first.saturating_add(self.piece).min(self.len)
    }

    /// Whether this host adds the piece up.
    pub fn adds(&self, piece: u32) -> bool {
        self.way == Reduction::Direct || piece as usize % self.n == self.me
    }

    /// Whether sums are told to the others, and not made by each.
    pub fn tells_sums(&self) -> bool {
        self.way == Reduction::Shards
    }

    /// The hosts that are sent this piece of the own gradient.
    pub fn takers(&self, piece: u32) -> impl Iterator<Item = usize> {
        let (me, way, owner) = (self.me, self.way, piece as usize % self.n);
        (0..self.n).filter(move |host| *host != me && (way == Reduction::Direct || *host == owner))
    }

    /// The own gradient of the step in work is here, and its pieces were sent.
    pub fn begin(&mut self) {
        self.open = Some(self.n_pieces());
    }

    /// Whether all pieces of the step in work are added up, so that the update can be made.
    pub fn is_done(&self) -> bool {
        self.open == Some(0)
    }

    /// The update was made; the next step is in work.
    pub fn end(&mut self) {
        self.applied += 1;
        self.open = None;
        self.steps[0] = std::mem::take(&mut self.steps[1]);
    }

    /// Takes a piece from host `from`: of its gradient, or of the sum.
    ///
    /// # Errors
    /// [`Refused`]; nothing has changed.
    pub fn arrive(
        &mut self,
        (step, piece): (u64, u32),
        from: usize,
        is_sum: bool,
        body: P,
    ) -> Result<(), Refused> {
        let applied = self.applied;
        let ahead = step.checked_sub(applied).filter(|ahead| *ahead < 2);
        let ahead = ahead.ok_or(Refused::Step { step, applied })? as usize;
        let is_due = match is_sum {
            true => self.tells_sums() && piece as usize % self.n == from,
            false => self.adds(piece),
        };
        if piece >= self.n_pieces() || from >= self.n || from == self.me || !is_due {
            return Err(Refused::Piece { piece });
        }
        let pieces = &mut self.steps[ahead];
        let is_new = match is_sum {
            true => !pieces.sums.contains_key(&piece),
            false => !pieces.parts.contains_key(&(piece, from)),
        };
        if !is_new {
            return Err(Refused::Twice);
        }
        match is_sum {
            true => drop(pieces.sums.insert(piece, body)),
            false => drop(pieces.parts.insert((piece, from), body)),
        }
        Ok(())
    }

    /// What can be done with what is here, if the own gradient is.
    pub fn next_piece(&mut self) -> Option<Piece<P>> {
        let open = self.open.filter(|open| *open > 0)?;
        let (n, me) = (self.n, self.me);
        let pieces = &mut self.steps[0];
        if let Some((piece, body)) = pieces.sums.pop_first() {
            self.open = Some(open - 1);
            return Some(Piece::Take { piece, body });
        }
        let complete = |piece: &u32| {
            let others = (0..n).filter(|host| *host != me);
            others
                .clone()
                .all(|host| pieces.parts.contains_key(&(*piece, host)))
        };
        let mut begun: Vec<u32> = pieces.parts.keys().map(|(piece, _)| *piece).collect();
        begun.dedup();
        let piece = begun.into_iter().find(complete)?;
        let bodies = (0..n).map(|host| pieces.parts.remove(&(piece, host)));
        let bodies = bodies.collect();
        self.open = Some(open - 1);
        Some(Piece::Add { piece, bodies })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Hosts whose gradients are `seed`ed; messages come in any order. Returns what each has after two steps.
    fn added(n: usize, way: Reduction, len: usize, order: &[usize]) -> Vec<Vec<f32>> {
        let value = |host: usize, at: usize, step: u64| {
            1.0 / (3.0 + host as f32 * 7.0 + at as f32 + step as f32 * 0.1)
        };
        let mut hosts: Vec<Adding<Vec<f32>>> =
            (0..n).map(|me| Adding::new((me, n), way, len, 0)).collect();
        for host in &mut hosts {
            host.piece = 3;
        }
        let mut results = vec![vec![0.0; len]; n];
        let mut order = order.iter().cycle();
        for step in 0..2 {
            let mut mail = Vec::new();
            for (me, host) in hosts.iter_mut().enumerate() {
                let own: Vec<f32> = (0..len).map(|at| value(me, at, step)).collect();
                for piece in 0..host.n_pieces() {
                    let values = own[host.values(piece)].to_vec();
                    mail.extend(
                        host.takers(piece)
                            .map(|to| (to, me, piece, false, values.clone())),
                    );
                }
                host.begin();
                results[me] = own;
            }
            while !mail.is_empty() {
                let at = order.next().unwrap() % mail.len();
                let (to, from, piece, is_sum, values) = mail.swap_remove(at);
                let host = &mut hosts[to];
                host.arrive((step, piece), from, is_sum, values.clone())
                    .unwrap();
                assert_eq!(
                    host.arrive((step, piece), from, is_sum, values),
                    if host.n_pieces() > 0 {
                        Err(Refused::Twice)
                    } else {
                        Ok(())
                    }
                );
                while let Some(piece) = host.next_piece() {
                    match piece {
                        Piece::Take { piece, body } => {
                            results[to][host.values(piece)].copy_from_slice(&body);
                        }
                        Piece::Add { piece, bodies } => {
                            let range = host.values(piece);
                            let own = results[to][range.clone()].to_vec();
                            let mut sum = vec![0.0; own.len()];
                            for body in &bodies {
                                let body = body.as_ref().unwrap_or(&own);
                                sum.iter_mut()
                                    .zip(body)
                                    .for_each(|(sum, value)| *sum += value);
                            }
                            results[to][range].copy_from_slice(&sum);
                            if host.tells_sums() {
                                let others = (0..n).filter(|other| *other != to);
                                mail.extend(
                                    others.map(|other| (other, to, piece, true, sum.clone())),
                                );
                            }
                        }
                    }
                }
            }
            for host in &mut hosts {
                assert!(host.is_done());
                host.end();
                assert!(!host.is_done());
            }
        }
        results
    }

    proptest! {
        #[test]
        fn all_have_the_same_bits_whatever_the_way_and_the_order(n in 2usize..6, len in 1usize..20, order in proptest::collection::vec(0usize..1000, 1..50)) {
            let direct = added(n, Reduction::Direct, len, &[0]);
            for host in &direct {
                prop_assert_eq!(host, &direct[0]);
            }
            for way in [Reduction::Direct, Reduction::Shards] {
                prop_assert_eq!(&added(n, way, len, &order), &direct);
            }
        }
    }

    #[test]
    fn pieces_that_nobody_sends_are_refused() {
        let mut adding: Adding<u8> = Adding::new((0, 3), Reduction::Shards, 10, 5);
        assert_eq!((adding.n_pieces(), adding.values(2)), (3, 8..10));
        for piece in [1, 3] {
            let refused = Err(Refused::Piece { piece });
            assert_eq!(adding.arrive((5, piece), 1, false, 0), refused);
        }
        let refused = Err(Refused::Piece { piece: 0 });
        assert_eq!(adding.arrive((5, 0), 0, false, 0), refused, "it is its own");
        assert_eq!(adding.arrive((5, 0), 3, false, 0), refused);
        assert_eq!(
            adding.arrive((5, 0), 1, true, 0),
            refused,
            "it is made here"
        );
        for step in [4, 7, u64::MAX] {
            let refused = Err(Refused::Step { step, applied: 5 });
            assert_eq!(adding.arrive((step, 0), 1, false, 0), refused);
        }
        assert_eq!(adding.arrive((6, 0), 1, false, 0), Ok(()));
        assert_eq!(adding.next_piece(), None, "the own gradient is not here");
    }

    #[test]
    fn a_gradient_of_any_size_has_numbers_for_its_pieces() {
        let adding: Adding<u8> = Adding::new((0, 2), Reduction::Direct, 3 << 30, 0);
        assert!(adding.n_pieces() <= MAX_MICRO);
        assert_eq!(adding.values(adding.n_pieces() - 1).end, 3 << 30);
    }
}
