//! A report as people read it.

use skein_model::plan::{Arrangement, Begins, Family, Group, Offer, Tier};

use super::super::show::{self, bytes, table};
use super::{Names, timeline};
use crate::control::PlanReport;

/// All of it; with `explain` why the others lost and what each device is worth.
pub(super) fn whole(report: &PlanReport, names: &Names, explain: bool) -> String {
    let Some(best) = report.candidates.first().and_then(|c| c.offer.as_ref()) else {
        return String::new();
    };
    let mut parts = vec![format!(
        "{}: {}\na step of {} samples would take {:.3} s, {:.0} samples/s\n{}",
        report.name,
        report.family.name(),
        report.step_samples,
        report.step_s,
        report.samples_per_s,
        arranged(best, report, names)
    )];
    let mut after = String::new();
    for standby in &report.standby {
        after += &format!("stands by and keeps copies: {}\n", standby.why);
    }
    if let Some(asked) = report.asked {
        let offered = report
            .candidates
            .iter()
            .find(|candidate| candidate.family == asked)
            .and_then(|candidate| candidate.offer.as_ref());
        after += &match offered {
            Some(offer) => format!(
                "the job file asks for {}: {:.3} s, {:.0} samples/s\n",
                asked.name(),
                offer.step_seconds,
                offer.samples_per_second
            ),
            None => format!(
                "the job file asks for {}, which cannot be had\n",
                asked.name()
            ),
        };
    }
    if !after.is_empty() {
        parts.push(after.trim_end().to_owned());
    }
    let drawn = report.timeline.as_deref();
    let drawn = drawn.map(|spans| timeline::text(spans, &report.devices));
    parts.extend(drawn.filter(|drawn| !drawn.is_empty()));
    if explain {
        parts.push(ranking(report));
        parts.push(losses(report, names));
    }
    if let Some(cut) = &report.cut {
        let title = format!("{}, cut as one pipeline today", report.name);
        parts.push(show::plan(&title, cut));
    }
    parts.join("\n\n")
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(String::from).to_vec()
}

/// Who does what.
fn arranged(offer: &Offer, report: &PlanReport, names: &Names) -> String {
    let mut rows = vec![row([
        "STAGE", "BLOCKS", "DEVICE", "SAMPLES", "DEPTH", "COMPUTES", "MEMORY", "SENDS",
    ])];
    let micro_batch = report.step_samples / report.n_micro.max(1);
    let mut add = |stage: String, device: usize, samples: String, depth: String| {
        let Some(role) = offer.roles.iter().find(|role| role.device == device) else {
            return;
        };
        rows.push(vec![
            stage,
            blocks(&role.blocks),
            names.of(device).to_owned(),
            samples,
            depth,
            format!("{:.0} % of a step", 100.0 * role.busy),
            bytes(role.memory_bytes),
            format!("{} a step", bytes(role.sent_bytes)),
        ]);
    };
    let mut stages = |groups: &[Group], island: &str| {
        for (number, group) in groups.iter().enumerate() {
            for share in &group.shares {
                let samples = format!("{} of {micro_batch}", share.samples);
                let depth = group.in_flight.to_string();
                add(format!("{island}{number}"), share.device, samples, depth);
            }
        }
    };
    let mut note = String::new();
    match &offer.arrangement {
        Arrangement::Stages(groups) => stages(groups, ""),
        Arrangement::Islands(islands) => {
            for (number, island) in islands.iter().enumerate() {
                stages(&island.groups, &format!("{number}/"));
            }
            let n_micro: Vec<String> = islands.iter().map(|i| i.n_micro.to_string()).collect();
            note = format!("\nmicro-batches of each island: {}", n_micro.join(", "));
        }
        Arrangement::Replicas(shares) => {
            for share in shares {
                let samples = format!("{} of {}", share.samples, report.step_samples);
                add("all".into(), share.device, samples, "-".into());
            }
        }
        Arrangement::Tiers(plan) => {
            for role in &offer.roles {
                let samples = format!("{} of {}", role.samples, report.step_samples);
                add("-".into(), role.device, samples, "-".into());
            }
            note = format!(
                "\nthe whole model: {}, {} samples begin there",
                tier(plan.whole),
                plan.samples
            );
            let begins = |begins: &Begins| {
                format!(
                    "\nthe first {} blocks: {}, {} samples",
                    begins.n_blocks,
                    tier(begins.tier),
                    begins.samples
                )
            };
            let others = plan.short.iter().chain(&plan.long);
            note += &others.map(begins).collect::<String>();
        }
    }
    format!("{}{note}", table(&rows))
}

fn tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "device",
        Tier::Edge => "edge",
        Tier::Cloud => "cloud",
    }
}

fn blocks(blocks: &std::ops::Range<usize>) -> String {
    format!("{} to {}", blocks.start, blocks.end.saturating_sub(1))
}

/// The families, and why those behind the first lost.
fn ranking(report: &PlanReport) -> String {
    let best = report.candidates.first().and_then(|c| c.offer.as_ref());
    let least = best.map_or(0.0, |best| best.seconds_per_sample);
    let mut rows = vec![row([
        "FAMILY",
        "STEP",
        "SAMPLES/S",
        "A SAMPLE COUNTS",
        "PER SAMPLE THAT COUNTS",
        "",
    ])];
    for candidate in &report.candidates {
        let name = candidate.family.name().to_owned();
        let Some(offer) = &candidate.offer else {
            let why = candidate.refusal.clone().unwrap_or_default();
            let none = || "-".to_owned();
            rows.push(vec![name, none(), none(), none(), none(), why]);
            continue;
        };
        let same = report.candidates.iter().find(|other| {
            let arrangement = other.offer.as_ref().map(|offer| &offer.arrangement);
            arrangement == Some(&offer.arrangement)
        });
        let verdict = match same {
            Some(same) if same.family != candidate.family => {
                format!("the same plan as {}", same.family.name())
            }
            _ if candidate.family == report.family => "the best".into(),
            _ if least > 0.0 => format!("{:.2} times as long", offer.seconds_per_sample / least),
            _ => "no better".into(),
        };
        rows.push(vec![
            name,
            format!("{:.3} s", offer.step_seconds),
            format!("{:.0}", offer.samples_per_second),
            format!("{:.2}", offer.efficiency),
            format!("{:.3} ms", 1e3 * offer.seconds_per_sample),
            verdict,
        ]);
    }
    table(&rows)
}

/// What would be left without each device.
fn losses(report: &PlanReport, names: &Names) -> String {
    let mut rows = vec![row(["WITHOUT", "FAMILY", "SAMPLES/S", ""])];
    rows.extend(report.losses.iter().map(|loss| {
        let name = names.of(loss.device).to_owned();
        let family = loss.family.map_or("-", Family::name).to_owned();
        let Some(rate) = loss.samples_per_s else {
            let why = loss.reason.clone().unwrap_or_default();
            return vec![name, family, "-".into(), why];
        };
        let stands_by = report.standby.iter().any(|idle| idle.device == loss.device);
        let change = match report.samples_per_s {
            _ if stands_by => "it has no part".into(),
            now if now > 0.0 => format!("{:+.0} %", 100.0 * (rate / now - 1.0)),
            _ => String::new(),
        };
        vec![name, family, format!("{rate:.0}"), change]
    }));
    table(&rows)
}
