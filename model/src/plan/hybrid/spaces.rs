//! Which groups are tried in which order: of few devices all, of more the neighbours in several orders.

use super::chain::Space;
use crate::plan::costs::Costs;

/// Most devices of which every group is tried in every place.
pub(super) const MAX_SETS: usize = 6;

/// Most devices that are planned with; of more the fastest.
pub const MAX_HYBRID: usize = 64;

/// Devices up to which a group may have any size.
const ANY_SIZE: usize = 16;

/// Most stages where groups are neighbours in an order.
const MOST_STAGES: usize = 16;

/// Every ordered choice of disjoint groups: used devices are a set of bits.
pub(super) fn every_group(n: usize) -> Space {
    let n_sets = 1usize << n;
    let devices = |set: usize| (0..n).filter(|device| set >> device & 1 == 1).collect();
    let heads = |used: usize| {
        let more = (1..n_sets).filter(|set| set & used == 0);
        more.map(|set| (set - 1, used | set)).collect()
    };
    Space {
        groups: (1..n_sets).map(devices).collect(),
        heads: (0..n_sets).map(heads).collect(),
        most_stages: n,
        hopeless: 1.6,
    }
}

/// Groups of neighbours in `order`, from its end: used devices are counted.
pub(super) fn neighbours(order: &[usize]) -> Space {
    let n = order.len();
    let sizes: Vec<usize> = if n <= ANY_SIZE {
        (1..=n).collect()
    } else {
        let sizes = (0..).map(|i: u32| [2usize, 3][i as usize % 2] << (i / 2));
        [1].into_iter()
            .chain(sizes.take_while(|size| *size < n))
            .chain([n])
            .collect()
    };
    let mut groups = Vec::new();
    let mut heads = vec![Vec::new(); n + 1];
    for (used, heads) in heads.iter_mut().enumerate() {
        for size in sizes.iter().take_while(|size| used + **size <= n) {
            let end = n - used;
            let mut devices = order[end - size..end].to_vec();
            devices.sort_unstable();
            heads.push((groups.len(), used + size));
            groups.push(devices);
        }
    }
    Space {
        groups,
        heads,
        most_stages: n.min(MOST_STAGES),
        hopeless: 1.15,
    }
}

/// Orders of the devices that are worth a try, at most [`MAX_HYBRID`] of them, none twice. The paper's is by memory: early
/// stages have most micro-batches in flight.
pub(super) fn orders(costs: &Costs<'_>) -> Vec<Vec<usize>> {
    let n = costs.devices.len();
    let whole = 0..costs.n_blocks();
    let seconds: Vec<f64> = (0..n)
        .map(|device| {
            let [forward, backward, _] = costs.seconds(device, &whole, costs.work.micro_batch);
            forward + backward
        })
        .collect();
    let mut chosen: Vec<usize> = (0..n).collect();
    if n > MAX_HYBRID {
        chosen.sort_by(|a, b| seconds[*a].total_cmp(&seconds[*b]));
        chosen.truncate(MAX_HYBRID);
        chosen.sort_unstable();
    }
    let by = |value: &dyn Fn(usize) -> f64| {
        let mut order = chosen.clone();
        order.sort_by(|a, b| value(*a).total_cmp(&value(*b)));
        order
    };
    let memory = |device: usize| costs.devices[device].memory_bytes as f64;
    let mut orders = vec![
        by(&|device| -memory(device)),
        by(&|device| seconds[device]),
        by(&|device| -seconds[device]),
        near(costs, &chosen, |device| seconds[device]),
        by(&memory),
        near(costs, &chosen, |device| -seconds[device]),
        chosen.clone(),
    ];
    if chosen.len() > ANY_SIZE {
        orders.truncate(4);
    }
    let mut distinct: Vec<Vec<usize>> = Vec::new();
    for order in orders {
        if !distinct.contains(&order) {
            distinct.push(order);
        }
    }
    distinct
}

/// Begins with the least by `value`, then always goes to the device with the fastest link from the one before: those behind
/// fast links stay together.
fn near(costs: &Costs<'_>, chosen: &[usize], value: impl Fn(usize) -> f64) -> Vec<usize> {
    let mut left = chosen.to_vec();
    left.sort_by(|a, b| value(*a).total_cmp(&value(*b)));
    let mut order: Vec<usize> = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let at = order.last().map_or(0, |last| {
            let rate =
                |device: usize| costs.links.rate[*last][device] + costs.links.rate[device][*last];
            let mut nearest = 0;
            for at in 1..left.len() {
                if rate(left[at]) > rate(left[nearest]) {
                    nearest = at;
                }
            }
            nearest
        });
        order.push(left.remove(at));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_devices_are_tried_in_all_groups() {
        let space = every_group(3);
        assert_eq!(space.groups.len(), 7);
        assert_eq!(space.groups[4], [0, 2]);
        // With 0 and 2 used only 1 is left.
        assert_eq!(space.heads[5], [(1, 7)]);
        // 13 ordered partitions of three, 3 x 3 of two of them, 3 of one.
        let paths = |from: usize| -> usize {
            fn count(space: &Space, from: usize) -> usize {
                let more = space.heads[from].iter();
                1 + more.map(|(_, then)| count(space, *then)).sum::<usize>()
            }
            count(&space, from)
        };
        assert_eq!(paths(0) - 1, 13 + 9 + 3);
    }

    #[test]
    fn neighbours_are_taken_from_the_end_of_the_order() {
        let space = neighbours(&[2, 0, 1]);
        let first: Vec<_> = space.heads[0]
            .iter()
            .map(|(group, used)| (space.groups[*group].clone(), *used))
            .collect();
        assert_eq!(first, [(vec![1], 1), (vec![0, 1], 2), (vec![0, 1, 2], 3)]);
        let large = neighbours(&(0..40).collect::<Vec<_>>());
        let sizes: Vec<usize> = large.heads[0].iter().map(|(_, used)| *used).collect();
        assert_eq!(sizes, [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40]);
    }
}
