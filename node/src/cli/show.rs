//! Numbers and tables as people read them.

use skein_gossip::ids::PeerId;

use crate::control::{Hex, JobStatus, LinkKnown, PeerStatus, Phase, PlanStatus, Status};

/// `12.3 MB`, in powers of ten as network and disk makers count.
pub(super) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if n < 1000 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if value < 10.0 {
        format!("{value:.1} {}", UNITS[unit])
    } else {
        format!("{value:.0} {}", UNITS[unit])
    }
}

/// `4.2 s`, `3 min 20 s`, `5 h 07 min`.
pub(super) fn seconds(s: f64) -> String {
    if !s.is_finite() || s < 0.0 {
        return "-".into();
    }
    let whole = s.round() as u64;
    match whole {
        0..=59 if s < 10.0 => format!("{s:.1} s"),
        0..=59 => format!("{whole} s"),
        60..=3599 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// A number that may be unknown, with `digits` after the point.
pub(super) fn number(value: Option<f64>, digits: usize) -> String {
    value
        .filter(|value| value.is_finite())
        .map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

/// A share as percent.
pub(super) fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{:.2} %", 100.0 * value))
}

/// Rows in columns as wide as their widest cell; the first row is the heading.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| Some(row.get(column)?.chars().count()))
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, &width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(String::from).to_vec()
}

/// The list of jobs.
pub(super) fn jobs(jobs: &[JobStatus]) -> String {
    if jobs.is_empty() {
        return "no jobs: start one with `skein train job.toml` (`skein init` writes a job file)"
            .into();
    }
    let mut rows = vec![row([
        "JOB", "NAME", "PHASE", "STEP", "VAL ACC", "LOSS", "PEERS", "ETA",
    ])];
    rows.extend(jobs.iter().map(|job| {
        vec![
            job.id.0.short(),
            job.name.clone(),
            job.phase.to_string(),
            job.step.to_string(),
            percent(
                job.best
                    .as_ref()
                    .and_then(|best| best.accuracy)
                    .or(job.val_accuracy),
            ),
            number(job.train_loss, 4),
            job.peers.len().to_string(),
            job.eta_s.map_or_else(|| "-".into(), seconds),
        ]
    }));
    let mut text = table(&rows);
    // Why something does not train is what a reader of this list looks for.
    let stuck = |job: &&JobStatus| matches!(job.phase, Phase::Waiting | Phase::Failed);
    for job in jobs.iter().filter(stuck) {
        if let Some(reason) = &job.reason {
            text += &format!("\n{} {}: {reason}", job.id.0.short(), job.phase);
        }
    }
    text
}

/// The list of peers, each with what keeps it from being connected.
pub(super) fn peers(peers: &[PeerStatus]) -> String {
    if peers.is_empty() {
        return "no other peers yet: type the line that `skein status` shows on another machine"
            .into();
    }
    let mut rows = vec![row([
        "PEER", "STATE", "VIA", "RTT", "IN", "OUT", "VERSION", "ADDRESS",
    ])];
    rows.extend(peers.iter().map(|peer| {
        vec![
            peer.id.map_or_else(|| "?".into(), |id| id.0.short()),
            peer.state.to_string(),
            peer.via.clone(),
            peer.rtt_ms
                .map_or_else(|| "-".into(), |rtt| format!("{rtt:.1} ms")),
            bytes(peer.bytes_in),
            bytes(peer.bytes_out),
            peer.version.clone().unwrap_or_else(|| "-".into()),
            peer.addresses.first().cloned().unwrap_or_default(),
        ]
    }));
    let mut text = table(&rows);
    for peer in peers {
        if let Some(reason) = &peer.reason {
            text += &format!("\n{}: {reason}", peer.label());
        }
    }
    text
}

/// The node itself.
pub(super) fn status(status: &Status) -> String {
    let listening = if status.listening.is_empty() {
        "nowhere".into()
    } else {
        status.listening.join("\n           ")
    };
    let mut running = String::new();
    for job in status.jobs.iter().filter(|job| !job.phase.is_final()) {
        running += &links(job);
        running += &stages(job);
    }
    format!(
        "peer       {}\nmesh       {}\nversion    {}\nlistening  {listening}\nup for     {}\njoin with  {}\n\n{}{running}",
        status.peer,
        status.mesh,
        status.version,
        seconds(status.uptime_s as f64),
        status.join_line,
        jobs(&status.jobs),
    )
}

/// What a running job's links carry, and who does how much of it.
fn links(job: &JobStatus) -> String {
    let mut text = String::new();
    if !job.links.is_empty() {
        let mut rows = vec![row([
            "LINK", "RATE", "RTT", "QUEUED", "N", "BITS", "PER STEP", "UNTOLD", "AHEAD",
        ])];
        rows.extend(job.links.iter().map(|link| {
            vec![
                link.peer.0.short(),
                link.bytes_per_s
                    .map_or_else(|| "-".into(), |rate| format!("{}/s", bytes(rate as u64))),
                link.round_trip_ms
                    .map_or_else(|| "-".into(), |ms| format!("{ms:.0} ms")),
                format!("{:.0} ms", link.queueing_ms),
                format!("{:.2} %", link.n_percent),
                link.bits.to_string(),
                bytes(link.bytes_per_step as u64),
                format!("{} steps", link.steps_untold),
                format!("{} steps", link.steps_ahead),
            ]
        }));
        text += &format!(
            "\n\nlinks of {} {}\n{}",
            job.name,
            job.id.0.short(),
            table(&rows)
        );
    }
    let global: u64 = job
        .contributions
        .iter()
        .map(|peer| u64::from(peer.batch))
        .sum();
    if global > 0 {
        let mut rows = vec![row(["PEER", "BATCH", "SHARE", "COMMITS", "WAITED", "SENT"])];
        rows.extend(job.contributions.iter().map(|peer| {
            vec![
                peer.peer.0.short(),
                peer.batch.to_string(),
                format!("{:.0} %", 100.0 * f64::from(peer.batch) / global as f64),
                peer.commits.to_string(),
                seconds(peer.seconds_waiting),
                bytes(peer.bytes_out),
            ]
        }));
        text += &format!("\n\n{}", table(&rows));
    }
    for lessons in job
        .lessons
        .iter()
        .filter(|lessons| lessons.rejected + lessons.failed > 0)
    {
        text += &format!(
            "\nreplicas of {}: {} taken over, {} no better, {} not fetched",
            lessons.peer.0.short(),
            lessons.merged,
            lessons.rejected,
            lessons.failed
        );
    }
    text
}

/// How a model would be cut.
pub(super) fn plan(name: &str, plan: &PlanStatus) -> String {
    let mut rows = vec![row(["STAGE", "HOST", "BLOCKS", "COMPUTES", "MEMORY"])];
    rows.extend(plan.stages.iter().enumerate().map(|(number, stage)| {
        let share = |host: Hex<PeerId>, samples: u32| format!("{} {samples}", host.0.short());
        let hosts = match stage.samples {
            None => stage.host.0.short(),
            Some(samples) => {
                let fellows = stage.fellows.iter();
                let fellows = fellows.map(|fellow| share(fellow.host, fellow.samples));
                let all = std::iter::once(share(stage.host, samples)).chain(fellows);
                all.collect::<Vec<_>>().join(", ")
            }
        };
        vec![
            number.to_string(),
            hosts,
            blocks(stage.first_block, stage.n_blocks),
            format!("{:.0} % of a step", 100.0 * stage.busy_frac),
            bytes(stage.memory_bytes),
        ]
    }));
    let mut text = format!(
        "{name}: a step would take {:.3} s, {:.0} samples/s\n{}",
        plan.step_s,
        plan.samples_per_s,
        table(&rows)
    );
    text += &planned_links(plan);
    let standby: Vec<String> = plan.standby.iter().map(|peer| peer.0.short()).collect();
    if !standby.is_empty() {
        text += &format!(
            "\nwithout a stage, as copies' keepers: {}",
            standby.join(" ")
        );
    }
    text
}

/// What a plan reckons with between its stages.
fn planned_links(plan: &PlanStatus) -> String {
    if plan.links.is_empty() {
        return String::new();
    }
    let mut rows = vec![row(["LINK", "TO", "MBIT/S", "WAY", "KNOWN"])];
    rows.extend(plan.links.iter().map(|link| {
        let known = match link.known {
            LinkKnown::Measured => "measured",
            LinkKnown::AtLeast => "at least; never full",
            LinkKnown::OtherWay => "as measured the other way",
            LinkKnown::Assumed => "assumed; not measured yet",
        };
        vec![
            link.from.0.short(),
            link.to.0.short(),
            format!("{:.1}", link.bytes_per_s * 8e-6),
            format!("{:.1} ms", link.latency_s * 1e3),
            known.into(),
        ]
    }));
    format!("\n{}", table(&rows))
}

/// The stages of a pipeline, and what the loss of a peer would cost.
fn stages(job: &JobStatus) -> String {
    if job.stages.is_empty() {
        return String::new();
    }
    let mut rows = vec![row([
        "STAGE",
        "HOST",
        "BLOCKS",
        "STATE",
        "STEP",
        "SLOWDOWN",
        "COPIES AT",
    ])];
    rows.extend(job.stages.iter().enumerate().map(|(number, stage)| {
        let state = match (stage.alive, stage.in_place) {
            (false, _) => "lost",
            (true, false) => "moving",
            (true, true) => "works",
        };
        let keepers: Vec<String> = stage.keepers.iter().map(|peer| peer.0.short()).collect();
        let hosts = [stage.host]
            .into_iter()
            .chain(stage.fellows.iter().copied());
        let hosts: Vec<String> = hosts.map(|peer| peer.0.short()).collect();
        vec![
            number.to_string(),
            hosts.join(" "),
            blocks(stage.first_block, stage.n_blocks),
            state.into(),
            stage.step.to_string(),
            number_of(stage.slowdown),
            keepers.join(" "),
        ]
    }));
    let mut text = format!(
        "\n\nstages of {} {}, view {}\n{}",
        job.name,
        job.id.0.short(),
        job.view,
        table(&rows)
    );
    text += &job.plan.as_ref().map(planned_links).unwrap_or_default();
    if let Some(recovery) = &job.recovery {
        text += &format!(
            "\nrecovery point: step {}; at most {} steps would be made again; every block is held by {} peers or more; whole at step {} on {} peers; copies here: {}",
            recovery.step,
            recovery.redone,
            recovery.fewest_copies,
            recovery.whole,
            recovery.whole_peers,
            bytes(recovery.bytes)
        );
    }
    text
}

fn number_of(slowdown: Option<f64>) -> String {
    slowdown.map_or_else(|| "-".into(), |slowdown| format!("{slowdown:.2} x"))
}

/// What came of a job: its end, its model, and who contributed what.
pub(super) fn report(job: &JobStatus) -> String {
    let mut text = format!("job {} ({}) {}", job.name, job.id.0.short(), job.phase);
    if let Some(reason) = &job.reason {
        text += &format!(": {reason}");
    }
    text += &format!(
        "\n{} steps here, {} samples on all peers, view {}",
        job.step, job.samples_mesh, job.view
    );
    if job.refused_updates > 0 {
        text += &format!(
            "\n{} updates of other peers were refused (not finite, or damaged)",
            job.refused_updates
        );
    }
    if let Some(best) = &job.best {
        let (accuracy, loss) = (percent(best.accuracy), number(best.loss, 4));
        text += &format!(
            "\nbest model: accuracy {accuracy}, loss {loss}, from peer {}",
            best.peer.0.short()
        );
        text += &format!("\nmodel hash: {}", best.hash);
    }
    if !job.contributions.is_empty() {
        let mut rows = vec![row([
            "PEER",
            "STEPS",
            "SAMPLES",
            "BATCH",
            "SENT",
            "COMPRESSION",
            "WAITED",
        ])];
        rows.extend(job.contributions.iter().map(|peer| {
            vec![
                peer.peer.0.short(),
                peer.steps.to_string(),
                peer.samples.to_string(),
                peer.batch.to_string(),
                bytes(peer.bytes_out),
                peer.compression
                    .map_or_else(|| "-".into(), |ratio| format!("{ratio:.0} x")),
                seconds(peer.seconds_waiting),
            ]
        }));
        text += &format!("\n\n{}", table(&rows));
    }
    if job.phase == Phase::Done {
        text += &format!(
            "\n\nexport it: skein export {} -o model.safetensors",
            job.id.0.short()
        );
    }
    text
}

/// The blocks of a stage; a source has none.
fn blocks(first: u16, n: u16) -> String {
    match n.checked_sub(1) {
        None => "source".into(),
        Some(more) => format!("{first} to {}", first.saturating_add(more)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_keep_their_unit() {
        for (n, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (12_345, "12 kB"),
            (999_999, "1.0 MB"),
            (u64::MAX, "18447 PB"),
        ] {
            assert_eq!(bytes(n), text);
        }
        for (s, text) in [
            (0.04, "0.0 s"),
            (9.96, "10.0 s"),
            (59.0, "59 s"),
            (200.0, "3 min 20 s"),
            (18_420.0, "5 h 07 min"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(seconds(s), text);
        }
        assert_eq!(
            (
                number(Some(f64::NAN), 2),
                number(Some(0.125), 2),
                percent(Some(0.9756))
            ),
            ("-".into(), "0.12".into(), "97.56 %".into())
        );
    }

    #[test]
    fn columns_line_up_without_trailing_blanks() {
        let text = table(&[row(["A", "LONG", "B"]), row(["xxx", "é", ""])]);
        assert_eq!(text, "A    LONG  B\nxxx  é");
    }
}
