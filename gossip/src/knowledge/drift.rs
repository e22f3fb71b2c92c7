//! Anti-entropy: which replica has drifted away from the others, and whom it refreshes from. Runs at every peer on the sketches in
//! beats; all come to the same verdict, and each acts on it for itself alone.
//!
//! A replica's place is its median distance to the others, so that neither one neighbour nor a cluster decides. Adrift is
//!
//! * who is alone far off: its median and its nearest distance are beyond [`Settings::factor`] times the median of all medians,
//!   and beyond [`Settings::floor_frac`] of the norm (two sides of a network partition are no outliers: merging them is
//!   [`super::merge`]'s work);
//! * when the mesh as a whole has come apart, so that the median of medians is beyond [`Settings::ceiling_frac`] of the norm: those
//!   farthest out, whoever is near them. So copies never drift apart without bound.
//!
//! Never more than a minority at once, the farthest first. Of two members the one with the worse loss is adrift, once they are
//! [`Settings::ceiling_frac`] apart. It refreshes from the medoid, the replica nearest to all. A hostile sketch can at most
//! propose the wrong medoid; what is fetched from it should pass the same gate as any candidate ([`super::pull`]).
//!
//! | own distance | the watch |
//! | --- | --- |
//! | beyond its bound | counts how long |
//! | below [`RELEASE`] of it | begins anew |
//! | between | keeps its count |
//! | counted to [`Settings::patience`], adrift, rested since the last refresh | refreshes, begins anew |

use std::time::Duration;

use super::losses::Report;
use super::sketch::Sketch;
use crate::ids::PeerId;
use crate::time::Tick;

/// Below this share of its bound a distance counts as mended; between it and the bound nothing changes.
pub const RELEASE: f32 = 0.75;

/// When a replica is adrift.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Times the median of all that an outlier is away. Medians of a healthy mesh differ by less than two, sketches by a quarter.
    pub factor: f32,
    /// Distances below this share of the parameters' norm are no drift, whatever the others have.
    pub floor_frac: f32,
    /// Distances beyond this share of the norm are drift, whatever the others have.
    pub ceiling_frac: f32,
    /// How long it must last: a replica that just merged something big comes back by itself.
    pub patience: Duration,
    /// Least time between two refreshes of one replica.
    pub rest: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            factor: 3.0,
            floor_frac: 0.02,
            ceiling_frac: 0.5,
            patience: Duration::from_secs(10),
            rest: Duration::from_secs(60),
        }
    }
}

/// What one member's beat says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Member {
    /// Who.
    pub peer: PeerId,
    /// Its parameters' sketch.
    pub sketch: Sketch,
    /// Its training loss: decides between two.
    pub report: Report,
}

/// Where one replica is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Whose.
    pub peer: PeerId,
    /// Median distance to the others.
    pub median: f32,
    /// How far it is beyond its bound: above 1 is too far.
    pub excess: f32,
}

/// Where all replicas are: to show, and to act on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    /// In the order of the members given.
    pub places: Vec<Place>,
    /// Median of the medians.
    pub typical: f32,
    /// Median norm of the parameters; `typical / norm` is the relative drift of the mesh.
    pub norm: f32,
    /// The replica nearest to all; `None` without members.
    pub medoid: Option<PeerId>,
    /// Who is to refresh, farthest first: a minority, or one of two.
    pub adrift: Vec<PeerId>,
}

/// Compares all replicas. Work grows with the square of the members: beyond some dozen give it the neighbours only.
pub fn survey(settings: &Settings, members: &[Member]) -> Survey {
    let n = members.len();
    let away: Vec<Vec<f32>> = members
        .iter()
        .map(|member| distances(member, members))
        .collect();
    let medians: Vec<f32> = away
        .iter()
        .map(|distances| lower_median(distances))
        .collect();
    let typical = lower_median(&medians);
    let norms: Vec<f32> = members.iter().map(|member| member.sketch.norm()).collect();
    let norm = lower_median(&norms);
    let alone = (settings.factor * typical).max(settings.floor_frac * norm);
    let ceiling = settings.ceiling_frac * norm;
    let excess = |median: f32, away: &[f32]| {
        let nearest = away.iter().copied().fold(f32::INFINITY, f32::min);
        match n {
            0 | 1 => 0.0,
            2 => ratio(median, ceiling),
            _ if typical > ceiling => ratio(median, ceiling),
            _ => ratio(median.min(nearest), alone),
        }
    };
    let place = |((member, median), away): ((&Member, &f32), &Vec<f32>)| Place {
        peer: member.peer,
        median: *median,
        excess: excess(*median, away),
    };
    let places: Vec<Place> = members.iter().zip(&medians).zip(&away).map(place).collect();
    // Of replicas at one median the one nearest on the whole.
    let spread = |index: &usize| away[*index].iter().map(|d| f64::from(*d)).sum::<f64>();
    let nearer = |a: &usize, b: &usize| {
        let by_median = medians[*a].total_cmp(&medians[*b]);
        let by_spread = by_median.then_with(|| spread(a).total_cmp(&spread(b)));
        by_spread.then_with(|| members[*a].peer.cmp(&members[*b].peer))
    };
    let mut order: Vec<usize> = (0..n).collect();
    if n == 2 {
        // At one distance from each other, only their losses tell them apart.
        order.sort_by(|a, b| {
            loss(&members[*a])
                .total_cmp(&loss(&members[*b]))
                .then_with(|| nearer(a, b))
        });
    } else {
        order.sort_by(nearer);
    }
    let most = if n == 2 { 1 } else { n.saturating_sub(1) / 2 };
    let far = order
        .iter()
        .rev()
        .filter(|index| places[**index].excess > 1.0);
    Survey {
        typical,
        norm,
        medoid: order.first().map(|index| members[*index].peer),
        adrift: far.take(most).map(|index| members[*index].peer).collect(),
        places,
    }
}

fn distances(of: &Member, members: &[Member]) -> Vec<f32> {
    let others = members.iter().filter(|other| other.peer != of.peer);
    others
        .map(|other| of.sketch.distance(&other.sketch))
        .collect()
}

fn loss(member: &Member) -> f32 {
    if member.report.is_plausible() {
        member.report.train_loss
    } else {
        f32::INFINITY
    }
}

/// The lower of the two middle values, so that in a mesh of three one far replica does not move the other two; 0 of nothing.
fn lower_median(values: &[f32]) -> f32 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f32::total_cmp);
    sorted
        .get(sorted.len().saturating_sub(1) / 2)
        .copied()
        .unwrap_or(0.0)
}

fn ratio(distance: f32, bound: f32) -> f32 {
    match (distance > 0.0, bound > 0.0) {
        (false, _) => 0.0,
        (true, true) => distance / bound,
        (true, false) => f32::INFINITY,
    }
}

/// What one look around showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    /// Where all replicas are.
    pub survey: Survey,
    /// Refresh from this peer now.
    pub refresh_from: Option<PeerId>,
}

/// One peer's watch over its own replica.
#[derive(Clone, Debug)]
pub struct Watch {
    settings: Settings,
    me: PeerId,
    /// For how long the own replica has been too far off.
    lasted: Duration,
    last: Option<Tick>,
    refreshed: Option<Tick>,
    n_refreshes: u64,
}

impl Watch {
    /// The watch of `me`.
    pub fn new(settings: Settings, me: PeerId) -> Self {
        Self {
            settings,
            me,
            lasted: Duration::ZERO,
            last: None,
            refreshed: None,
            n_refreshes: 0,
        }
    }

    /// Looks at all live members' sketches, the own one among them. If the own is missing, the own parameters are not finite, and
    /// that is as far off as can be.
    pub fn look(&mut self, now: Tick, members: &[Member]) -> Look {
        let settings = self.settings;
        let survey = survey(&settings, members);
        let gap = self.last.map_or(Duration::ZERO, |last| now.since(last));
        self.last = Some(now);
        let own = survey.places.iter().find(|place| place.peer == self.me);
        let excess = own.map_or(f32::INFINITY, |place| place.excess);
        if excess < RELEASE {
            self.lasted = Duration::ZERO;
        } else if excess > 1.0 {
            // A jump of time does not stand for looks that were not made.
            let counted = gap.min(settings.patience / 3);
            self.lasted = self.lasted.saturating_add(counted).min(settings.patience);
        }
        let rested = self
            .refreshed
            .is_none_or(|refreshed| now.since(refreshed) >= settings.rest);
        let is_adrift = own.is_none() || survey.adrift.contains(&self.me);
        let source = survey.medoid.filter(|medoid| *medoid != self.me);
        let refresh_from =
            source.filter(|_| is_adrift && rested && self.lasted >= settings.patience);
        if refresh_from.is_some() {
            self.refreshed = Some(now);
            self.lasted = Duration::ZERO;
            self.n_refreshes += 1;
        }
        Look {
            survey,
            refresh_from,
        }
    }

    /// How often it has asked for a refresh.
    pub fn n_refreshes(&self) -> u64 {
        self.n_refreshes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;

    fn peer(id: u8) -> PeerId {
        PeerId([id; 32])
    }

    /// Parameters of norm about 100, `away` from a common centre in a direction of their own.
    fn parameters(away: f32, direction: u64) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(direction);
        let step = away / 100.0;
        let sign = |rng: &mut ChaCha8Rng| if rng.next_u32() & 1 == 0 { step } else { -step };
        (0..10_000).map(|_| 1.0 + sign(&mut rng)).collect()
    }

    fn member(id: u8, parameters: &[f32], train_loss: f32) -> Member {
        Member {
            peer: peer(id),
            sketch: Sketch::of(parameters, 7, 1).unwrap(),
            report: Report {
                train_loss,
                n_samples: 100,
            },
        }
    }

    fn members(away: &[f32]) -> Vec<Member> {
        (1..)
            .zip(away)
            .map(|(id, away)| member(id, &parameters(*away, u64::from(id)), 1.0))
            .collect()
    }

    fn refresh(
        watch: &mut Watch,
        members: &[Member],
        seconds: std::ops::Range<u64>,
    ) -> Vec<(u64, PeerId)> {
        let look = |second| {
            watch
                .look(Tick(0) + Duration::from_secs(second), members)
                .refresh_from
                .map(|from| (second, from))
        };
        seconds.filter_map(look).collect()
    }

    #[test]
    fn one_outlier_is_found_and_refreshes_after_a_while_and_not_again_at_once() {
        let mesh = members(&[2.0, 2.0, 30.0, 2.0, 2.0]);
        let survey = survey(&Settings::default(), &mesh);
        assert_eq!(survey.adrift, [peer(3)]);
        assert!(survey.medoid.is_some_and(|medoid| medoid != peer(3)));
        assert!((survey.norm / 100.0 - 1.0).abs() < 0.05);
        let medoid = survey.medoid.unwrap();
        let mut outlier = Watch::new(Settings::default(), peer(3));
        assert_eq!(refresh(&mut outlier, &mesh, 0..70), [(10, medoid)]);
        assert_eq!(
            refresh(&mut outlier, &mesh, 70..100),
            [(70, medoid)],
            "rested"
        );
        assert_eq!(outlier.n_refreshes(), 2);
        let mut healthy = Watch::new(Settings::default(), peer(1));
        assert_eq!(refresh(&mut healthy, &mesh, 0..100), []);
    }

    #[test]
    fn a_healthy_mesh_and_equal_replicas_have_no_outlier() {
        for away in [
            &[3.0, 4.0, 5.0, 3.5][..],
            &[0.0; 5],
            &[0.0, 0.0, 0.5],
            &[9.0],
        ] {
            assert_eq!(
                survey(&Settings::default(), &members(away)).adrift,
                [],
                "{away:?}"
            );
        }
    }

    #[test]
    fn two_sides_of_a_network_partition_are_no_outliers() {
        for split in [2, 3] {
            let side = |id: u8| {
                if id <= split {
                    parameters(20.0, 100)
                } else {
                    parameters(20.0, 200)
                }
            };
            let mesh: Vec<Member> = (1..=6)
                .map(|id| {
                    let own = parameters(1.0, u64::from(id));
                    let both: Vec<f32> = side(id)
                        .iter()
                        .zip(&own)
                        .map(|(side, own)| side + own - 1.0)
                        .collect();
                    member(id, &both, 1.0)
                })
                .collect();
            let survey = survey(&Settings::default(), &mesh);
            assert_eq!(survey.adrift, [], "{split} of 6");
            assert!(
                survey.places.iter().any(|place| place.median > 15.0),
                "far apart they are"
            );
        }
    }

    #[test]
    fn a_mesh_that_has_come_apart_is_gathered_by_a_minority_at_a_time() {
        let survey = survey(
            &Settings::default(),
            &members(&[90.0, 60.0, 70.0, 80.0, 50.0]),
        );
        assert_eq!(survey.adrift.len(), 2);
        assert_eq!(survey.adrift[0], peer(1));
        assert!(!survey.adrift.contains(&survey.medoid.unwrap()));
    }

    #[test]
    fn of_two_members_the_one_with_the_worse_loss_refreshes() {
        let pair = |losses: [f32; 2]| {
            let parameters = [parameters(60.0, 1), parameters(60.0, 2)];
            [
                member(1, &parameters[0], losses[0]),
                member(2, &parameters[1], losses[1]),
            ]
        };
        let adrift = |losses| {
            let survey = survey(&Settings::default(), &pair(losses));
            (survey.adrift, survey.medoid)
        };
        assert_eq!(adrift([0.5, 0.7]), (vec![peer(2)], Some(peer(1))));
        assert_eq!(adrift([0.9, 0.7]), (vec![peer(1)], Some(peer(2))));
        assert_eq!(adrift([f32::NAN, 9.0]), (vec![peer(1)], Some(peer(2))));
        assert_eq!(
            survey(&Settings::default(), &members(&[20.0, 20.0])).adrift,
            [],
            "not far enough"
        );
        let mut worse = Watch::new(Settings::default(), peer(2));
        assert_eq!(
            refresh(&mut worse, &pair([0.5, 0.7]), 0..30),
            [(10, peer(1))]
        );
    }

    #[test]
    fn a_replica_that_is_not_finite_refreshes_and_a_short_excursion_does_not() {
        let mesh = members(&[2.0, 2.0, 2.0]);
        let mut broken = Watch::new(Settings::default(), peer(9));
        assert_eq!(refresh(&mut broken, &mesh, 0..30).len(), 1);
        let far = members(&[2.0, 2.0, 30.0, 2.0]);
        let near = members(&[2.0, 2.0, 2.0, 2.0]);
        let mut watch = Watch::new(Settings::default(), peer(3));
        for turn in 0..10 {
            assert_eq!(refresh(&mut watch, &far, turn * 20..turn * 20 + 8), []);
            assert_eq!(
                refresh(&mut watch, &near, turn * 20 + 8..turn * 20 + 20),
                []
            );
        }
        let mut asleep = Watch::new(Settings::default(), peer(3));
        assert_eq!(refresh(&mut asleep, &far, 0..1), []);
        assert_eq!(
            refresh(&mut asleep, &far, 3600..3601),
            [],
            "an hour's gap is one look"
        );
        assert_eq!(
            Watch::new(Settings::default(), peer(1))
                .look(Tick(0), &[])
                .refresh_from,
            None
        );
    }

    #[test]
    fn a_distance_just_below_the_bound_neither_counts_nor_is_forgiven() {
        let with = |away: f32| members(&[2.0, 2.0, away, 2.0, 2.0]);
        let excess = |mesh: &[Member]| survey(&Settings::default(), mesh).places[2].excess;
        let steps = (0..100).map(|step| with(2.0 + 0.2 * step as f32));
        let between = steps
            .into_iter()
            .find(|mesh| (0.8..0.95).contains(&excess(mesh)))
            .unwrap();
        let mut watch = Watch::new(Settings::default(), peer(3));
        assert_eq!(refresh(&mut watch, &with(30.0), 0..8), []);
        assert_eq!(refresh(&mut watch, &between, 8..100), [], "does not count");
        assert_eq!(
            refresh(&mut watch, &with(30.0), 100..110).len(),
            1,
            "is not forgiven"
        );
    }

    proptest! {
        #[test]
        fn whatever_the_sketches_only_a_minority_is_adrift_and_the_medoid_is_not(
            raw in proptest::collection::vec((any::<u8>(), -3e38f32..3e38, 0..3u8, any::<f32>()), 0..9)
        ) {
            let mut mesh: Vec<Member> = Vec::new();
            for (id, value, kind, train_loss) in raw {
                let value = match kind { 0 => 0.0, 1 => 1.0, _ => value / 1e20 };
                let Some(sketch) = Sketch::of(&[value; 8], 1, 1) else { continue };
                let report = Report { train_loss, n_samples: u64::from(id) };
                mesh.push(Member { peer: peer(id), sketch, report });
            }
            mesh.sort_by_key(|member| member.peer);
            mesh.dedup_by_key(|member| member.peer);
            let survey = survey(&Settings::default(), &mesh);
            let n = mesh.len();
            prop_assert!(survey.adrift.len() * 2 < n.max(1) || (n == 2 && survey.adrift.len() == 1));
            prop_assert!(survey.medoid.is_none_or(|medoid| !survey.adrift.contains(&medoid)));
            prop_assert!(survey.places.iter().all(|place| place.excess >= 0.0));
        }
    }
}
