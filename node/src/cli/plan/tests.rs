//! Plans from files, as a user runs them.

use std::fs;

use clap::Parser;

use super::super::args::{Cli, Command};
use super::super::exit::{CliError, Exit};
use super::super::tests::Printed;
use super::plan;
use crate::control::{PlanReport, Response};

/// A slow and a fast device with a fast link, and one that nobody needs.
const PROFILE: &str = r#"
    [work]
    micro_batch = 8
    n_micro = 4
    [work.profile]
    input_bytes = 3072
    [[work.profile.blocks]]
    forward = [[1, 0.004], [8, 0.02]]
    backward = [[8, 0.04]]
    output_bytes = 4096
    parameter_bytes = 100000
    state_bytes = 300000
    kept_bytes = 8192
    [[work.profile.blocks]]
    forward = [[1, 0.004], [8, 0.02]]
    backward = [[8, 0.04]]
    output_bytes = 40
    parameter_bytes = 100000
    state_bytes = 300000
    kept_bytes = 8192
    [[devices]]
    name = "board"
    [[devices]]
    name = "desk"
    memory_bytes = 4000000
    [[devices]]
    name = "watch <3>"
    capacity = 200
    [links]
    rate = [[0, 12.5e6, 12.5e6], [12.5e6, 0, 12.5e6], [12.5e6, 12.5e6, 0]]
"#;

const JOB: &str =
    "name = 'digits'\nstrategy = 'exchange'\n[model]\nkind = 'cnn'\n[stop]\nsteps = 5\n";

/// Runs `skein plan job.toml` with `words`, in a folder with `files`; what it printed, and the folder.
async fn run(
    json: bool,
    files: &[(&str, &str)],
    words: &str,
) -> (Result<Exit, CliError>, String, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("job.toml", JOB), ("mesh.toml", PROFILE)]
        .iter()
        .chain(files)
    {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let mut line = vec!["skein".to_owned(), "plan".to_owned()];
    for word in words.split(' ') {
        let is_file = word.ends_with(".toml") || word.ends_with(".json") || word.ends_with(".svg");
        let path = folder.path().join(word).to_string_lossy().into_owned();
        line.push(if is_file { path } else { word.to_owned() });
    }
    let Command::Plan(args) = Cli::try_parse_from(line).unwrap().command else {
        panic!("{words}")
    };
    let (output, printed) = Printed::output(json);
    let result = plan(folder.path(), args, &output).await;
    (result, printed.text(), folder)
}

async fn report(files: &[(&str, &str)], words: &str) -> PlanReport {
    let (result, text, _folder) = run(true, files, words).await;
    assert_eq!(result.unwrap(), Exit::Ok);
    match Response::decode(text.trim_end().as_bytes()).unwrap() {
        Response::Plan(report) => *report,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_file_is_planned_without_a_node_and_all_of_it_is_shown() {
    let words = "job.toml --profile mesh.toml --explain --svg step.svg --save again.json";
    let (result, text, folder) = run(false, &[], words).await;
    assert_eq!(result.unwrap(), Exit::Ok, "{text}");
    for part in [
        "digits: ",
        "a step of 32 samples would take",
        "STAGE",
        "DEPTH",
        "board",
        "desk",
        "stands by and keeps copies: watch <3> would",
        "samples/s",
        "digits: forward pass",
        "FAMILY",
        "the best",
        "not every device has a tier",
        "each worth 0.54",
        "WITHOUT",
        "as now: it has no part",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let svg = fs::read_to_string(folder.path().join("step.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    assert!(svg.contains("<title>board: backward 0"), "{svg}");
    // What was saved is planned alike.
    let saved = fs::read_to_string(folder.path().join("again.json")).unwrap();
    let first = report(&[], "job.toml --profile mesh.toml").await;
    let again = report(&[("b.json", &saved)], "job.toml --profile b.json").await;
    assert_eq!(again.candidates[0].family, first.family);
    assert!((again.step_s / first.step_s - 1.0).abs() < 1e-9);
}

#[tokio::test]
async fn the_step_is_that_of_the_job_file_where_it_says_one() {
    let words = "job.toml --profile mesh.toml";
    let as_saved = report(&[], words).await;
    assert_eq!((as_saved.step_samples, as_saved.n_micro), (32, 4));
    let set = JOB.replace("strategy = 'exchange'\n", "");
    let set = format!("{set}[train]\nbatch = 64\n[strategy.pipeline]\nmicro_batches = 16\n");
    let other = report(&[("job.toml", &set)], words).await;
    assert_eq!((other.step_samples, other.n_micro), (64, 16));
    assert!(other.timeline.is_some() && other.cut.is_none());
    let small = format!("{JOB}[train]\nbatch = 2\n");
    let small = report(&[("job.toml", &small)], words).await;
    assert_eq!((small.step_samples, small.n_micro), (2, 2));
}

#[tokio::test]
async fn devices_can_be_left_out_and_added() {
    let words = "job.toml --profile mesh.toml";
    let all = report(&[], words).await;
    let without = report(&[], &format!("{words} --without desk --without watch")).await;
    assert_eq!(without.devices, ["board"]);
    assert!(without.samples_per_s < all.samples_per_s);
    let server = "[device]\nname = 'server'\ncapacity = 0.1\ntier = 'cloud'\n[links]\nrate = 125e6\nlatency = 0.001\n\
                  [links.with.board]\nrate = 1e9\n";
    let files = [("server.toml", server)];
    let with = report(&files, &format!("{words} --add server.toml --explain")).await;
    assert_eq!(with.devices[3], "server");
    assert!(with.samples_per_s > 2.0 * all.samples_per_s);
    let loss = &with.losses[3];
    let rate = loss.samples_per_s.unwrap();
    assert!((rate / all.samples_per_s - 1.0).abs() < 1e-9, "{loss:?}");
}

#[tokio::test]
async fn what_is_wrong_with_a_file_is_said_with_exit_code_2() {
    let add = |links: &str| format!("[device]\nname = 'x'\n[links]\n{links}");
    let profile = |from: &str, to: &str| PROFILE.replace(from, to);
    for (files, words, part) in [
        (
            [("a.toml", profile("memory_bytes", "memory"))],
            "--profile a.toml",
            "unknown field `memory`",
        ),
        (
            [("a.toml", profile("capacity = 200", "capacity = 0"))],
            "--profile a.toml",
            "watch <3>: its capacity is not above 0",
        ),
        (
            [("a.toml", profile("n_micro = 4", "n_micro = 0"))],
            "--profile a.toml",
            "a step of 0 micro-batches",
        ),
        (
            [("a.toml", profile("[[0, 12.5e6, 12.5e6], ", "["))],
            "--profile a.toml",
            "the links do not name a rate",
        ),
        (
            [("a.json", "{}".into())],
            "--profile a.json",
            "missing field",
        ),
        (
            [("a.toml", String::new())],
            "--profile job.yaml",
            "neither .toml nor .json",
        ),
        (
            [("a.toml", add("rate = -1"))],
            "--profile mesh.toml --add a.toml",
            "with x: ",
        ),
        (
            [("a.toml", add("rate = 1\n[links.with.nobody]\nrate = 2"))],
            "--profile mesh.toml --add a.toml",
            "no device has the name or id \"nobody\": there are board, desk",
        ),
        (
            [("a.toml", String::new())],
            "--profile mesh.toml --without nobody",
            "\"nobody\"",
        ),
        (
            [("a.toml", profile("[work]", "data = { at = 0 }\n[work]"))],
            "--profile a.toml --without board",
            "nothing can be planned without board: it alone has the data",
        ),
    ] {
        let files = [(files[0].0, files[0].1.as_str())];
        let (result, ..) = run(false, &files, &format!("job.toml {words}")).await;
        let error = result.unwrap_err();
        assert_eq!(error.exit, Exit::Usage, "{words}: {error}");
        assert!(error.message.contains(part), "{part} is not in {error}");
    }
    let (result, ..) = run(false, &[], "job.toml --profile nowhere.toml").await;
    assert_eq!(result.unwrap_err().exit, Exit::NotFound);
    let tiny = PROFILE.replace("name =", "memory_bytes = 10\nname =");
    let tiny = tiny.replace("    memory_bytes = 4000000\n", "");
    let (result, ..) = run(false, &[("a.toml", &tiny)], "job.toml --profile a.toml").await;
    let error = result.unwrap_err();
    assert_eq!(error.exit, Exit::Refused);
    assert!(error.message.contains("block 0 needs"), "{error}");
}
