//! Which rows belong to which shard. Every peer computes the whole division from the seed and keeps its own part, so
//! shards are disjoint without a word exchanged.

use super::exact::{exp, ln};
use crate::config::Split;
use crate::random::Stream;

/// Why there is no such shard.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// There are fewer shards.
    #[error("there is no shard {shard}: the data is split into {shards}, counted from 0")]
    NoSuchShard {
        /// The shard asked for.
        shard: u32,
        /// Number of shards.
        shards: u32,
    },
    /// Some shards would be empty.
    #[error(
        "{samples} samples cannot be split into {shards} shards: give fewer shards or more data"
    )]
    TooFewSamples {
        /// Samples in the training part.
        samples: usize,
        /// Number of shards.
        shards: u32,
    },
}

/// The rows of `shard`, ascending. `labels` are those of the whole training part.
///
/// # Errors
/// No such shard; fewer samples than shards.
pub fn shard_rows(
    split: &Split,
    labels: &[i64],
    seed: u64,
    shard: u32,
) -> Result<Vec<usize>, SplitError> {
    let shards = match split {
        Split::All {} => 1,
        Split::Iid { shards } | Split::Dirichlet { shards, .. } => *shards,
    };
    if labels.len() < shards.max(1) as usize {
        return Err(SplitError::TooFewSamples {
            samples: labels.len(),
            shards,
        });
    }
    if !matches!(split, Split::All {}) && shard >= shards {
        return Err(SplitError::NoSuchShard { shard, shards });
    }
    let mut rows = match split {
        Split::All {} => return Ok((0..labels.len()).collect()),
        Split::Iid { .. } => {
            let mut rows: Vec<usize> = (0..labels.len()).collect();
            Stream::new(seed, "split").shuffle(&mut rows);
            let edge =
                |shard: u32| (rows.len() as u64 * u64::from(shard) / u64::from(shards)) as usize;
            rows[edge(shard)..edge(shard + 1)].to_vec()
        }
        Split::Dirichlet { alpha, .. } => {
            dirichlet(labels, seed, *alpha, shards as usize).swap_remove(shard as usize)
        }
    };
    rows.sort_unstable();
    Ok(rows)
}

/// Shares each class out by proportions drawn from a Dirichlet distribution; every shard ends with at least one row.
fn dirichlet(labels: &[i64], seed: u64, alpha: f64, shards: usize) -> Vec<Vec<usize>> {
    let mut by_class = std::collections::BTreeMap::<i64, Vec<usize>>::new();
    for (row, label) in labels.iter().enumerate() {
        by_class.entry(*label).or_default().push(row);
    }
    let mut parts = vec![Vec::new(); shards];
    for (label, mut rows) in by_class {
        let mut stream = Stream::new(seed, &format!("split class {label}"));
        stream.shuffle(&mut rows);
        let weights: Vec<f64> = (0..shards).map(|_| gamma(&mut stream, alpha)).collect();
        let total: f64 = weights.iter().sum();
        let (mut sum, mut start) = (0.0, 0);
        for (shard, weight) in weights.iter().enumerate() {
            sum += weight;
            let last = shard + 1 == shards;
            // All weights can underflow to zero at a tiny alpha: the last shard then takes the class.
            let share = if total > 0.0 { sum / total } else { 0.0 };
            let end = if last {
                rows.len()
            } else {
                ((rows.len() as f64 * share).round() as usize).clamp(start, rows.len())
            };
            parts[shard].extend_from_slice(&rows[start..end]);
            start = end;
        }
    }
    fill_empty(&mut parts);
    parts
}

/// Gives each empty part one row of the largest. There are at least as many rows as parts.
fn fill_empty(parts: &mut [Vec<usize>]) {
    while let Some(empty) = parts.iter().position(Vec::is_empty) {
        let largest = (0..parts.len())
            .max_by_key(|part| parts[*part].len())
            .unwrap_or(empty);
        let row = parts[largest].pop();
        parts[empty].extend(row);
    }
}

/// A draw from the gamma distribution with shape `alpha` (Marsaglia and Tsang 2000, "A simple method for generating
/// gamma variables"; below 1 with their boost by `u^(1/alpha)`).
fn gamma(stream: &mut Stream, alpha: f64) -> f64 {
    if alpha < 1.0 {
        let boost = exp(ln(1.0 - stream.uniform_f64()) / alpha);
        return gamma(stream, alpha + 1.0) * boost;
    }
    let d = alpha - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(stream);
        let v = (1.0 + c * x) * (1.0 + c * x) * (1.0 + c * x);
        if v > 0.0 && ln(1.0 - stream.uniform_f64()) < 0.5 * x * x + d - d * v + d * ln(v) {
            return d * v;
        }
    }
}

/// A draw from the standard normal distribution (Marsaglia's polar method).
fn normal(stream: &mut Stream) -> f64 {
    loop {
        let (a, b) = (
            stream.uniform_f64() * 2.0 - 1.0,
            stream.uniform_f64() * 2.0 - 1.0,
        );
        let square = a * a + b * b;
        if square > 0.0 && square < 1.0 {
            return a * (-2.0 * ln(square) / square).sqrt();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(n: usize, classes: i64) -> Vec<i64> {
        (0..n as i64).map(|row| row * 7 % classes).collect()
    }

    fn all(split: &Split, labels: &[i64], shards: u32) -> Vec<Vec<usize>> {
        (0..shards)
            .map(|shard| shard_rows(split, labels, 5, shard).unwrap())
            .collect()
    }

    #[test]
    fn gamma_has_the_mean_and_variance_of_its_shape() {
        for alpha in [0.3, 1.0, 4.0] {
            let mut stream = Stream::new(9, "gamma");
            let draws: Vec<f64> = (0..20_000).map(|_| gamma(&mut stream, alpha)).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let variance =
                draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / draws.len() as f64;
            assert!((mean / alpha - 1.0).abs() < 0.05, "{alpha}: mean {mean}");
            assert!(
                (variance / alpha - 1.0).abs() < 0.1,
                "{alpha}: variance {variance}"
            );
        }
    }

    #[test]
    fn a_small_alpha_makes_shards_unlike_and_a_large_one_alike() {
        let labels = labels(4000, 10);
        let largest_class = |alpha| {
            let parts = all(&Split::Dirichlet { alpha, shards: 4 }, &labels, 4);
            let share = |part: &Vec<usize>| {
                let count = |class| part.iter().filter(|row| labels[**row] == class).count();
                (0..10).map(count).max().unwrap_or(0) as f64 / part.len() as f64
            };
            parts.iter().map(share).sum::<f64>() / 4.0
        };
        assert!(largest_class(0.1) > 0.25, "{}", largest_class(0.1));
        assert!(largest_class(1000.0) < 0.12, "{}", largest_class(1000.0));
    }

    #[test]
    fn impossible_shards_are_refused() {
        let iid = Split::Iid { shards: 3 };
        assert_eq!(
            shard_rows(&iid, &[0; 9], 1, 3),
            Err(SplitError::NoSuchShard {
                shard: 3,
                shards: 3
            })
        );
        assert_eq!(
            shard_rows(&iid, &[0; 2], 1, 0),
            Err(SplitError::TooFewSamples {
                samples: 2,
                shards: 3
            })
        );
        assert_eq!(shard_rows(&Split::All {}, &[0; 2], 1, 99), Ok(vec![0, 1]));
    }

    proptest! {
        #[test]
        fn shards_are_disjoint_cover_everything_and_are_never_empty(
            n in 1usize..300, shards in 1u32..20, classes in 1i64..12, alpha in 0.001f64..10.0, even: bool,
        ) {
            prop_assume!(n >= shards as usize);
            let labels = labels(n, classes);
            let split = if even { Split::Iid { shards } } else { Split::Dirichlet { alpha, shards } };
            let parts = all(&split, &labels, shards);
            prop_assert!(parts.iter().all(|part| !part.is_empty()));
            let mut rows = parts.concat();
            rows.sort_unstable();
            prop_assert_eq!(rows, (0..n).collect::<Vec<_>>());
        }
    }
}
