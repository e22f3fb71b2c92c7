//! The command line as a user meets it: what it prints and what it ends with.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot start the program has to stop"
)]

use std::process::{Command, Output};

fn netem(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skein-netem"));
    command
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .args(args);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_good_file_is_checked_and_drawn() {
    let done = netem(&["check", "scenarios/lan-4.toml"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert_eq!(
        text(&done.stdout),
        "lan-4: 4 nodes, 0 events, 3 expectations, 1 run\n"
    );
    let done = netem(&[
        "show",
        "scenarios/lan-4.toml",
        "--set",
        "node.peer.up.loss=0.25",
    ]);
    assert_eq!(done.status.code(), Some(0));
    let drawing = text(&done.stdout);
    for part in [
        "peer-0 … peer-3 (4)",
        "1 Gbit/s",
        "loses 25 %",
        "closed_nodes == 4",
    ] {
        assert!(drawing.contains(part), "{part} is not in\n{drawing}");
    }
}

#[test]
fn what_is_wrong_ends_with_2_and_says_where_and_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.toml");
    std::fs::write(&bad, "name = \"bad\"\nabuot = \"x\"\n").unwrap();
    let bad = bad.to_string_lossy();
    for (args, said) in [
        (
            vec!["check", &bad],
            "line 2, column 1: abuot: unknown key\n 2 | abuot = \"x\"\n   | ^^^^^\nfix: did you mean `about`?",
        ),
        (vec!["check", "no-such.toml"], "cannot read no-such.toml"),
        (
            vec!["check", "scenarios/lan-4.toml", "--set", "nonsense"],
            "KEY=VALUE",
        ),
        (
            vec!["check", "scenarios/lan-4.toml", "--variant", "x"],
            "has no variants",
        ),
        (vec!["show", "scenarios/lan-4.toml#x"], "has no variants"),
        (
            vec!["run", "scenarios/lan-4.toml", "--engine", "real"],
            "choose lab or sim",
        ),
        (
            vec!["report", "scenarios"],
            "give a folder that run or compare wrote",
        ),
        (vec!["frobnicate"], "unrecognized subcommand"),
    ] {
        let done = netem(&args);
        let error = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(said), "{args:?}: {error}");
    }
}

#[test]
fn the_manual_names_every_metric_preset_key_and_file() {
    use skein_netem::link::PRESETS;
    use skein_netem::scenario::{Against, Named, Statistic};
    let manual = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/testbed.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let named = Named::ALL
        .iter()
        .map(|metric| format!("`{}`", metric.word()));
    let against = Against::ALL
        .iter()
        .map(|metric| format!("`{}(", metric.word()));
    let statistics = Statistic::ALL
        .iter()
        .map(|statistic| format!("`{}`", statistic.word()));
    let presets = PRESETS
        .iter()
        .map(|preset| format!("| `{}` |", preset.name));
    for word in named.chain(against).chain(statistics).chain(presets) {
        assert!(
            manual.contains(&word),
            "docs/testbed.md does not name {word}"
        );
    }
}

#[test]
fn the_manual_names_every_field_of_the_json() {
    use skein_netem::report::{Compared, RunSummary, Summary, Verdict};
    let verdict = Verdict {
        metric: "steps".into(),
        comparison: ">=".into(),
        bound: 1.0,
        value: None,
        holds: false,
    };
    let run = RunSummary {
        verdicts: vec![verdict],
        ..RunSummary::default()
    };
    let compared = Compared {
        metric: "steps".into(),
        contestant: "a".into(),
        values: vec![None],
        min: None,
        median: None,
        max: None,
        ratio: None,
    };
    let mut summary = Summary::new("a", vec![run]);
    summary.comparison = vec![compared];
    let json = serde_json::to_value(&summary).unwrap();
    assert_eq!(json["format"], 1);
    assert!(json["runs"][0]["verdicts"][0]["value"].is_null());
    let manual = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/testbed.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let (_, form) = manual.split_once("```text").unwrap();
    let (form, _) = form.split_once("```").unwrap();
    let words: Vec<&str> = form
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .collect();
    let objects = [
        &json,
        &json["runs"][0],
        &json["runs"][0]["verdicts"][0],
        &json["comparison"][0],
    ];
    for key in objects
        .iter()
        .flat_map(|object| object.as_object().unwrap().keys())
    {
        assert!(
            words.contains(&key.as_str()),
            "docs/testbed.md does not name {key}"
        );
    }
}

#[test]
fn what_would_fail_later_is_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let used = folder.path().join("used");
    std::fs::create_dir(&used).unwrap();
    std::fs::write(used.join("summary.json"), "{}").unwrap();
    let used = used.to_string_lossy();
    for (args, said) in [
        (
            vec![
                "check",
                "scenarios/lan-4.toml",
                "--set",
                "job.model.kind=nonsense",
            ],
            "the job of this scenario",
        ),
        (
            vec![
                "check",
                "scenarios/dlion-cpu.toml#hetero",
                "--variant",
                "homo",
            ],
            "give one",
        ),
        (
            vec![
                "run",
                "scenarios/toy-1000.toml",
                "--engine",
                "sim",
                "--out",
                &used,
            ],
            "holds the runs of an earlier command",
        ),
        (
            vec![
                "run",
                "scenarios/toy-1000.toml",
                "--engine",
                "sim",
                "--json",
                "/nowhere/x.json",
            ],
            "cannot write the summary to /nowhere/x.json",
        ),
    ] {
        let done = netem(&args);
        let errors = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(said), "{args:?}: {errors}");
    }
}
