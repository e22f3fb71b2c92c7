//! A report as people read it.

use skein_model::plan::{Arrangement, Begins, Family, Group, Offer, Tier};

use super::super::show::{self, bytes, table};
use super::{Names, timeline};
use crate::control::PlanReport;

/// Samples per second, to three digits.
pub(super) fn rate(rate: f64) -> String {
    let digits = match rate {
        rate if rate >= 100.0 => 0,
        rate if rate >= 10.0 => 1,
        _ => 2,
    };
    format!("{rate:.digits$}")
}

/// All of it; with `explain` why the others lost and what each device is worth.
pub(super) fn whole(report: &PlanReport, names: &Names, explain: bool) -> String {
    let Some(best) = report.candidates.first().and_then(|c| c.offer.as_ref()) else {
        return String::new();
    };
    let mut parts = vec![format!(
        "{}: {}\na step of {} samples would take {:.3} s, {} samples/s{}\n{}",
        report.name,
        report.family.name(),
        report.step_samples,
        report.step_s,
        rate(report.samples_per_s),
        counting(best),
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
                "the job file asks for {}: {:.3} s, {} samples/s{}\n",
                asked.name(),
                offer.step_seconds,
                rate(offer.samples_per_second),
                counting(offer)
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

/// What samples are worth, where that is less than those of synchronous steps.
fn counting(offer: &Offer) -> String {
    match offer.efficiency {
        1.0 => String::new(),
        efficiency => format!(", each worth {efficiency:.2} of a synchronous one"),
    }
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
            note = "\nnobody waits: each begins its next step at once".into();
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
            rate(offer.samples_per_second),
            format!("{:.2}", offer.efficiency),
            format!("{:.3} ms", 1e3 * offer.seconds_per_sample),
            verdict,
        ]);
    }
    table(&rows)
}

/// What would be left without each device.
fn losses(report: &PlanReport, names: &Names) -> String {
    let best = report.candidates.first().and_then(|c| c.offer.as_ref());
    let now = best.map_or(0.0, |best| best.seconds_per_sample);
    let mut rows = vec![row(["WITHOUT", "FAMILY", "SAMPLES/S", "SPEED THAT COUNTS"])];
    rows.extend(report.losses.iter().map(|loss| {
        let name = names.of(loss.device).to_owned();
        let family = loss.family.map_or("-", Family::name).to_owned();
        let (Some(samples), Some(then)) = (loss.samples_per_s, loss.seconds_per_sample) else {
            let why = loss.reason.clone().unwrap_or_default();
            return vec![name, family, "-".into(), why];
        };
        let stands_by = report.standby.iter().any(|idle| idle.device == loss.device);
        let change = if stands_by {
            "as now: it has no part".into()
        } else if then > 0.0 {
            format!("{:+.1} %", 100.0 * (now / then - 1.0))
        } else {
            String::new()
        };
        vec![name, family, rate(samples), change]
    }));
    if rows.len() == 1 {
        return "what is left without each device is not planned for that many islands".into();
    }
    table(&rows)
}
