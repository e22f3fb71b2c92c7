//! Numbers for other programs: `metrics.csv` and `links.csv`.

use std::io::{self, Write};

use crate::record::Record;

/// Beyond so many rows, lines of steps and samples of traffic are thinned evenly.
const MOST_ROWS: usize = 400_000;

/// `node,t,event,field,value`: each number of `step` and `evaluated` lines.
pub(super) fn metrics(record: &Record, mut to: impl Write) -> io::Result<()> {
    writeln!(to, "node,t,event,field,value")?;
    let steps = record.nodes.iter().flat_map(|node| &node.metrics);
    let numbers: usize = steps
        .filter(|line| line.event == "step")
        .map(|line| line.fields.len())
        .sum();
    let every = numbers.div_ceil(MOST_ROWS).max(1);
    for node in &record.nodes {
        let mut steps = 0;
        for line in &node.metrics {
            match line.event.as_str() {
                "step" => {
                    steps += 1;
                    if steps % every != 0 {
                        continue;
                    }
                }
                "evaluated" => {}
                _ => continue,
            }
            for (field, value) in &line.fields {
                if let Some(value) = value.as_f64() {
                    writeln!(
                        to,
                        "{},{:.6},{},{field},{value}",
                        node.name, line.t, line.event
                    )?;
                }
            }
        }
    }
    Ok(())
}

/// `t,from,to,bytes,delivered,dropped`: what each directed pair had carried by then.
pub(super) fn links(record: &Record, mut to: impl Write) -> io::Result<()> {
    writeln!(to, "t,from,to,bytes,delivered,dropped")?;
    let rows: usize = record.traffic.iter().map(|sample| sample.pairs.len()).sum();
    let every = rows.div_ceil(MOST_ROWS).max(1);
    let name = |rank: usize| record.nodes.get(rank).map_or("", |node| &node.name);
    // From the end, so that the totals are always there.
    let kept = record.traffic.iter().rev().step_by(every);
    for sample in kept.collect::<Vec<_>>().into_iter().rev() {
        for pair in &sample.pairs {
            let (from, into) = (name(pair.from), name(pair.to));
            let (bytes, delivered, dropped) = (pair.bytes, pair.delivered, pair.dropped);
            writeln!(
                to,
                "{:.3},{from},{into},{bytes},{delivered},{dropped}",
                sample.t
            )?;
        }
    }
    Ok(())
}
