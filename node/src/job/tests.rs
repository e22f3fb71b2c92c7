//! Job files good and bad: what defaults to what, and where each mistake is shown.

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use super::file::{Every, MAX_JOB_BYTES};
use super::strategy::pipeline::{Cut, Precision, Schedule};
use super::strategy::{
    BatchingKind, Commit, Exchange, Method, Pipeline, Select, ValueFormat, Waiting,
};
use super::*;

const SMALLEST: &str = "[model]\nkind = 'cnn'\n[stop]\nsteps = 5\n";

#[test]
fn tiers_compute_all_samples_of_a_step_at_once() {
    let job = |kind: &str, line: &str| {
        let text = format!("{SMALLEST}[strategy]\nkind = '{kind}'\n[strategy.pipeline]\n{line}\n");
        JobFile::parse(&text)
    };
    let pipeline = |line: &str| job("tiers", line).unwrap().strategy.pipeline;
    assert_eq!(
        (pipeline("").n_micro(), pipeline("").values),
        (1, Precision::F32)
    );
    assert_eq!(pipeline("micro_batches = 1").n_micro(), 1);
    assert_eq!(pipeline("cut = 'jalad'").values, Precision::Int8);
    for line in ["cut = 'all-edge'", "cut = 'jointdnn'", "cut = 'equal'"] {
        assert!(pipeline(line).cut.tier_baseline().is_some(), "{line}");
        assert_eq!(job("hybrid", line).is_err(), line != "cut = 'equal'");
    }
    for line in [
        "micro_batches = 8",
        "cut = 'gpipe'",
        "cut = 'pipedream'",
        "schedule = 'async'",
    ] {
        assert!(job("tiers", line).is_err(), "{line}");
        assert!(
            job("pipeline", line).is_ok() || line.contains("gpipe"),
            "{line}"
        );
    }
}

#[test]
fn the_smallest_job_gets_the_documented_defaults() {
    let job = JobFile::parse(SMALLEST).unwrap();
    assert_eq!(
        (
            job.name.as_str(),
            job.seed,
            job.train.batch,
            job.start.peers
        ),
        ("job", 1, 32, 1)
    );
    let exchange = job.strategy.exchange;
    assert_eq!(exchange, Exchange::like(Method::Skein));
    assert_eq!(
        (exchange.waiting, exchange.values),
        (Waiting::Never, ValueFormat::Octave)
    );
    assert_eq!((exchange.most, exchange.level), (0.01, 1));
    assert_eq!(job.strategy.batching.kind, BatchingKind::Weighted);
    assert_eq!((job.evaluate.every, job.evaluate.samples), (None, 2000));
    assert!(job.evaluate.average);
    assert_eq!(
        (job.checkpoint.every, job.checkpoint.keep),
        (Every::Time(Duration::from_secs(30)), 3)
    );
    assert_eq!((job.stop.steps, job.stop.accuracy), (Some(5), None));
}

#[test]
fn every_key_can_be_set_and_shown_as_json() {
    let job = JobFile::parse(
        "name = 'fashion'\nseed = 7\n\
         [model]\nkind = 'mlp'\nhidden = [32]\n\
         [data]\nsource = 'fashion-mnist'\nsplit = { kind = 'dirichlet', alpha = 0.5, shards = 4 }\n\
         [train]\nbatch = 64\noptimiser = { kind = 'adamw', lr = 1e-3 }\n\
         [stop]\naccuracy = 0.9\nloss = 0.1\nsteps = 10\nepochs = 2\nseconds = 60\n\
         [start]\npeers = 2\n\
         [strategy.exchange]\nlike = 'local-sgd'\nwaiting = 'all'\nselect = 'top-k'\nmost = 0.5\nleast = 0.1\n\
         threshold = 0.02\nvalues = 'int8'\ncommit = { steps = 8 }\nlocal = 'full'\n\
         outer = { lr = 0.7, momentum = 0.9 }\nlevel = 3\n\
         [strategy.batching]\nkind = 'equal'\nglobal = 512\ngrowth = true\n\
         [strategy.knowledge]\nevery = 10\nweight = 0.5\ngated = false\nrefresh = false\n\
         [evaluate]\nevery = 10\nsamples = 100\naverage = false\n\
         [checkpoint]\nsteps = 500\nkeep = 5\n",
    )
    .unwrap();
    assert_eq!(
        (job.train.batch, job.stop.epochs, job.stop.seconds),
        (64, Some(2.0), Some(60.0))
    );
    let exchange = job.strategy.exchange;
    assert_eq!(
        (
            exchange.waiting,
            exchange.select,
            exchange.most,
            exchange.values,
            exchange.commit
        ),
        (
            Waiting::All,
            Select::TopK,
            0.5,
            ValueFormat::Int8,
            Commit::Steps(8)
        )
    );
    assert_eq!(job.strategy.batching.global, Some(512));
    assert_eq!(job.strategy.knowledge.weight, 0.5);
    assert_eq!(
        (job.checkpoint.every, job.checkpoint.keep),
        (Every::Steps(500), 5)
    );
    let json = serde_json::to_value(&job).unwrap();
    assert_eq!(json["train"]["optimiser"]["kind"], "adamw");
    assert_eq!(json["checkpoint"]["every"]["steps"], 500);
}

#[test]
fn a_pipeline_can_be_set_and_has_its_documented_defaults() {
    let job = JobFile::parse(&format!("{SMALLEST}[strategy]\nkind = 'pipeline'\n")).unwrap();
    let pipeline = job.strategy.pipeline;
    assert_eq!(pipeline, Pipeline::default());
    assert_eq!(
        (pipeline.n_micro(), pipeline.copies, pipeline.copy_every),
        (8, 2, None)
    );
    let job = JobFile::parse(&format!(
        "{SMALLEST}[strategy]\nkind = 'pipeline'\n[strategy.pipeline]\nmicro_batches = 4\nschedule = 'gpipe'\n\
         cut = 'pipedream'\nrecut = 'absorb'\ncopies = 1\ncopy_every = 50\nglobal_every = 500\nvalues = 'bf16'\nrecompute = true\n"
    ));
    let pipeline = job.unwrap().strategy.pipeline;
    assert_eq!(
        (pipeline.schedule, pipeline.cut),
        (Schedule::Gpipe, Cut::Pipedream)
    );
    assert_eq!(
        (pipeline.copies, pipeline.copy_every, pipeline.recompute),
        (1, Some(50), true)
    );
    assert_eq!(pipeline.global_every, Some(500));
    let job = JobFile::parse(&format!(
        "{SMALLEST}[strategy]\nkind = 'pipeline'\n[strategy.pipeline]\nschedule = 'async'\nvertical_sync = true\n\
         aggregate_every = 5\nhide_transfers = true\nscale_rate = false\n"
    ));
    let pipeline = job.unwrap().strategy.pipeline;
    assert_eq!(
        (pipeline.schedule, pipeline.n_micro()),
        (Schedule::Asynchronous, 1)
    );
    assert!(pipeline.syncs_versions() && pipeline.hides_transfers());
    assert_eq!(
        (pipeline.aggregate_every, pipeline.scale_rate),
        (Some(5), Some(false))
    );
}

#[test]
fn a_job_may_start_from_given_weights() {
    let job = JobFile::parse(SMALLEST).unwrap();
    assert!(!job.start.is_given() && job.start.digest().is_none());
    let hash = "0f".repeat(32);
    let job = JobFile::parse(&format!(
        "{SMALLEST}[start]\nweights = 'model.safetensors'\nhash = '{hash}'\n"
    ));
    let start = job.unwrap().start;
    assert!(start.is_given());
    assert_eq!(
        start.weights.as_deref(),
        Some(Path::new("model.safetensors"))
    );
    assert_eq!(start.digest().unwrap().0, [15; 32]);
    for wrong in ["0f", "xx", ""] {
        let hash = wrong.repeat(if wrong == "xx" { 32 } else { 1 });
        check(
            &format!("{SMALLEST}[start]\nhash = '{hash}'<<\n"),
            "start.hash",
            "64 hexadecimal digits",
        );
    }
}

#[test]
fn data_may_be_a_part_of_a_source_and_new_data_beside_it() {
    let job = JobFile::parse(&format!(
        "{SMALLEST}[data]\nlabels = [0, 1]\nmix = {{ share = 0.1, source = 'npy', path = 'new' }}\n"
    ));
    let data = job.unwrap().data;
    assert_eq!(data.labels, Some(vec![0, 1]));
    let new = data.mix.as_ref().unwrap().source(&data);
    assert_eq!(
        (new.path.as_deref(), new.labels),
        (Some(Path::new("new")), None)
    );
    check(
        &format!("{SMALLEST}[data]\nmix = {{ share = 1.5<<, labels = [1] }}\n"),
        "data.mix.share",
        "between 0.01 and 0.99",
    );
    check(
        &format!("{SMALLEST}[data]\ntokenizer = 'tokenizer.json'<<\n"),
        "data.tokenizer",
        "only text",
    );
}

#[test]
fn what_a_pipeline_cannot_do_is_refused() {
    let pipeline = |line: &str, key: &str, words: &str| {
        check(
            &format!("{SMALLEST}[strategy]\nkind = 'pipeline'\n[strategy.pipeline]\n{line}<<\n"),
            key,
            words,
        );
    };
    pipeline(
        "micro_batches = 0",
        "strategy.pipeline.micro_batches",
        "at most the samples of a step",
    );
    pipeline(
        "micro_batches = 33",
        "strategy.pipeline.micro_batches",
        "at most the samples of a step",
    );
    pipeline("copies = 17", "strategy.pipeline.copies", "0 to 16");
    pipeline(
        "copy_every = 0",
        "strategy.pipeline.copy_every",
        "1 or more",
    );
    pipeline("copy = 1", "strategy.pipeline.copy", "copy_every");
    for key in [
        "vertical_sync = false",
        "aggregate_every = 5",
        "scale_rate = true",
    ] {
        let name = key.split(' ').next().unwrap();
        let path = format!("strategy.pipeline.{name}");
        pipeline(key, &path, "leave it out, or write schedule = \"async\"");
    }
    pipeline(
        "hide_transfers = true",
        "strategy.pipeline.hide_transfers",
        "1f1b",
    );
    pipeline(
        "schedule = 'async'\nmicro_batches = 4",
        "strategy.pipeline.micro_batches",
        "at once",
    );
    pipeline(
        "schedule = 'async'\naggregate_every = 0",
        "strategy.pipeline.aggregate_every",
        "1 or more",
    );
    check(
        "[model]\nkind = 'cnn'\n[stop]\nsteps = 5\n[strategy]\nkind = 'pipeline'\n[data]\nsplit = { kind = 'iid', shards = 2 }<<\n",
        "data.split",
        "leave it out",
    );
    let gpt = "[stop]\nsteps = 5\n[strategy]\nkind = 'pipeline'\n[model]\nkind = 'gpt'\nlayers = 2\nheads = 2\nwidth = 16\ncontext = 8\n";
    check(
        &format!("{gpt}tied = true<<\n"),
        "model.tied",
        "tied = false",
    );
}

/// Parses `text` with the bad line marked by `<<`, and checks key, line and words of the message.
#[track_caller]
fn check(text: &str, key: &str, words: &str) {
    let line = text
        .lines()
        .position(|line| line.contains("<<"))
        .map_or(1, |index| index + 1);
    let text = text.replace("<<", "");
    let error = JobFile::parse(&text).expect_err(&text);
    let fault = error.fault().expect("a fault with a place");
    assert_eq!(
        (fault.key.as_str(), fault.line),
        (key, line),
        "{text}\n{error}"
    );
    assert!(error.to_string().contains(words), "{words:?} in\n{error}");
    assert!(!fault.fix.is_empty() && !fault.problem.is_empty());
}

/// The smallest job with one more line, which is bad.
#[track_caller]
fn check_line(section: &str, line: &str, key: &str, words: &str) {
    let section = if section.is_empty() {
        String::new()
    } else {
        format!("[{section}]\n")
    };
    match &*section {
        "[model]\n" => check(
            &format!("[stop]\nsteps = 5\n[model]\nkind = 'mlp'\n{line}<<\n"),
            key,
            words,
        ),
        "[stop]\n" => check(
            &format!("[model]\nkind = 'cnn'\n[stop]\n{line}<<\n"),
            key,
            words,
        ),
        _ => check(&format!("{section}{line}<<\n{SMALLEST}"), key, words),
    }
}

#[test]
fn unknown_keys_are_named_with_the_nearest_known() {
    check_line("", "sed = 1", "sed", "did you mean `seed`");
    check_line(
        "",
        "optimiser = 1",
        "optimiser",
        "use one of name, seed, model",
    );
    check(
        &format!("{SMALLEST}[trian]<<\nbatch = 1\n"),
        "trian",
        "did you mean `train`",
    );
    check_line("train", "bacth = 32", "train.bacth", "did you mean `batch`");
    check_line(
        "train",
        "optimiser = { kind = 'sgd', lr = 0.1, momentun = 0.9 }",
        "train.optimiser.momentun",
        "did you mean `momentum`",
    );
    check_line(
        "train.optimiser",
        "kind = 'sgd'\nlr = 0.1\nbeta = 0.9",
        "train.optimiser.beta",
        "unknown key",
    );
    check_line(
        "data",
        "sorce = 'digits'",
        "data.sorce",
        "did you mean `source`",
    );
    check_line(
        "data",
        "split = { kind = 'iid', shards = 2, alpha = 1.0 }",
        "data.split.alpha",
        "unknown key",
    );
    check_line(
        "model",
        "hiden = [3]",
        "model.hiden",
        "did you mean `hidden`",
    );
    check_line(
        "stop",
        "accurracy = 0.9",
        "stop.accurracy",
        "did you mean `accuracy`",
    );
    check_line(
        "strategy.exchange",
        "ratio = 0.1",
        "strategy.exchange.ratio",
        "use one of like, waiting",
    );
    check_line(
        "checkpoint",
        "evry = '3s'",
        "checkpoint.evry",
        "did you mean `every`",
    );
}

#[test]
fn impossible_values_are_named_with_what_to_write() {
    check_line("", "name = ''", "name", "64 letters");
    check_line("", "name = '../x'", "name", "64 letters");
    check_line("", "name = 3", "name", "double quotes");
    check_line("", "seed = -1", "seed", "whole number, 0 or more");
    check_line("", "seed = 1.5", "seed", "whole number");
    check_line("train", "batch = 0", "train.batch", "1 to 65536");
    check_line("train", "batch = 100000", "train.batch", "1 to 65536");
    check_line(
        "train",
        "batch = -4",
        "train.batch",
        "whole number, 0 or more",
    );
    check_line(
        "train",
        "batch = 'many'",
        "train.batch",
        "whole number, 0 or more",
    );
    check_line("train", "batch = nan", "train.batch", "whole number");
    check_line(
        "train",
        "optimiser = 'sgd'",
        "train.optimiser",
        "write it as a table",
    );
    check_line(
        "train",
        "optimiser = { kind = 'sgd', lr = nan }",
        "train.optimiser.lr",
        "above 0",
    );
    check_line(
        "train",
        "optimiser = { kind = 'sgd', lr = -0.1 }",
        "train.optimiser.lr",
        "above 0",
    );
    check_line(
        "train",
        "optimiser = { kind = 'sgd', lr = 'high' }",
        "train.optimiser.lr",
        "such as 0.5",
    );
    check_line(
        "train",
        "optimiser = { kind = 'sgd', lr = 0.1, momentum = 1 }",
        "train.optimiser.momentum",
        "below 1",
    );
    check_line(
        "train",
        "optimiser = { kind = 'sgdd', lr = 0.1 }",
        "train.optimiser.kind",
        "did you mean `sgd`",
    );
    check_line(
        "train",
        "optimiser = { kind = 'sgd' }",
        "train.optimiser.lr",
        "is missing",
    );
    check_line(
        "train",
        "optimiser = { lr = 0.1 }",
        "train.optimiser.kind",
        "is missing",
    );
    check_line("model", "hidden = [0]", "model.hidden", "widths");
    check_line("model", "hidden = 'deep'", "model.hidden", "sequence");
    check_line(
        "data",
        "source = 'digit'",
        "data.source",
        "did you mean `digits`",
    );
    check(
        &format!("[data]<<\nsource = 'npy'\n{SMALLEST}"),
        "data.path",
        "give the path",
    );
    check_line(
        "data",
        "split = { kind = 'dirichlet', shards = 4 }",
        "data.split.alpha",
        "is missing",
    );
    check_line(
        "data",
        "split = { kind = 'dirichlet', alpha = -1.0, shards = 4 }",
        "data.split.alpha",
        "between 0.001",
    );
    check_line(
        "data",
        "split = { kind = 'iid', shards = 0 }",
        "data.split.shards",
        "between 1 and",
    );
    check_line("stop", "accuracy = 97", "stop.accuracy", "write 0.97");
    check_line(
        "stop",
        "accuracy = nan",
        "stop.accuracy",
        "above 0 and at most 1",
    );
    check_line("stop", "loss = -1", "stop.loss", "above 0");
    check_line("stop", "loss = inf", "stop.loss", "above 0");
    check_line("stop", "steps = 0", "stop.steps", "1 or more");
    check_line("stop", "seconds = 0", "stop.seconds", "above 0");
    check_line("stop", "epochs = 'two'", "stop.epochs", "such as 0.5");
    check_line("start", "peers = 0", "start.peers", "1 to 1024");
    for (lines, key, words) in [
        ("most = 0", "most", "above 0 and at most 1"),
        ("most = 1.01", "most", "above 0 and at most 1"),
        ("least = 0.5", "least", "at most that of `most`"),
        ("threshold = 0", "threshold", "such as 0.01"),
        ("waiting = 'nevr'", "waiting", "did you mean `never`"),
        ("like = 'gaya'", "like", "did you mean `gaia`"),
        ("values = 'f64'", "values", "is not a choice"),
        ("level = 30", "level", "1 (fast) to 19"),
        ("commit = { steps = 0 }", "commit", "{ steps = 1 }"),
        (
            "waiting = 'all'\ncommit = 'search'",
            "commit",
            "waiting = \"never\"",
        ),
        (
            "waiting = 'all'\ncommit = { steps = 4 }",
            "commit",
            "local = \"full\"",
        ),
        ("commit = { adacomm = 9 }", "commit", "waiting = \"all\""),
        (
            "outer = { lr = 1, momentum = 0 }",
            "outer",
            "nobody else makes an outer step",
        ),
    ] {
        check_line(
            "strategy.exchange",
            lines,
            &format!("strategy.exchange.{key}"),
            words,
        );
    }
    check_line(
        "strategy.batching",
        "global = 0",
        "strategy.batching.global",
        "1 to 1073741824",
    );
    check_line(
        "strategy.knowledge",
        "every = 0.5",
        "strategy.knowledge.every",
        "0 for never",
    );
    check_line(
        "strategy.knowledge",
        "weight = 2",
        "strategy.knowledge.weight",
        "such as 0.75",
    );
    check_line("evaluate", "every = 0", "evaluate.every", "such as 50");
    check_line(
        "evaluate",
        "samples = 0",
        "evaluate.samples",
        "such as 2000",
    );
    check_line(
        "checkpoint",
        "every = 'often'",
        "checkpoint.every",
        "\"30s\"",
    );
    check_line(
        "checkpoint",
        "every = 30",
        "checkpoint.every",
        "double quotes",
    );
    check_line("checkpoint", "every = '0s'", "checkpoint.every", "\"1s\"");
    check_line(
        "checkpoint",
        "every = '30s'\nsteps = 5",
        "checkpoint.steps",
        "either",
    );
    check_line("checkpoint", "steps = 0", "checkpoint.steps", "1 or more");
    check_line("checkpoint", "keep = 0", "checkpoint.keep", "1 to 1000");
}

#[test]
fn what_is_missing_or_no_toml_is_named_too() {
    check("[stop]\nsteps = 5\n", "model", "add a section [model]");
    check("[model]<<\n[stop]\nsteps = 5", "model.kind", "is missing");
    check(
        "[model]\nkind = 'transformer'<<\n[stop]\nsteps = 5",
        "model.kind",
        "use one of",
    );
    check("[model]\nkind = 'cnn'\n", "stop", "never end");
    check("[model]\nkind = 'cnn'\n[stop]<<\n", "stop", "never end");
    check("model = 'cnn'<<\n[stop]\nsteps = 5", "model", "table");
    check(
        "train = 3<<\n[model]\nkind = 'cnn'\n[stop]\nsteps = 5",
        "train",
        "table",
    );
    check("[model]\nkind = cnn<<\n", "kind", "not TOML");
    check("seed = 1\nseed = 2<<\n", "seed", "duplicate key");
    check("seed =<<\n", "seed", "not TOML");
    check("[model\u{0}]<<\n", "", "not TOML");
}

#[test]
fn a_text_beyond_the_bound_is_not_read() {
    let text = format!("{SMALLEST}#{}", "x".repeat(MAX_JOB_BYTES));
    assert!(matches!(
        JobFile::parse(&text),
        Err(JobError::TooLong { .. })
    ));
}

#[test]
fn every_example_is_a_job() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/jobs");
    let mut names = vec![];
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        JobFile::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        names.push(path.file_name().unwrap().to_string_lossy().into_owned());
    }
    names.sort();
    assert_eq!(
        names,
        [
            "demo-digits.toml",
            "demo-fashion-mnist.toml",
            "digits.toml",
            "fashion-mnist.toml",
            "gpt-bible.toml",
            "mlp-private.toml",
            "pipeline-efficientnet-b1.toml",
            "pipeline-mobilenet-v2.toml",
            "pipeline-resnet-50.toml",
            "sync-dense.toml"
        ]
    );
}

proptest! {
    #[test]
    fn arbitrary_text_is_a_job_or_an_error(text in any::<String>()) {
        if let Err(error) = JobFile::parse(&text) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn arbitrary_toml_is_a_job_or_an_error_in_its_own_lines(
        lines in proptest::collection::vec((0..KEYS.len(), 0..VALUES.len()), 0..12)
    ) {
        let text: String = lines.iter().map(|&(key, value)| match KEYS[key].strip_prefix('[') {
            Some(_) => format!("{}\n", KEYS[key]),
            None => format!("{} = {}\n", KEYS[key], VALUES[value]),
        }).collect();
        if let Err(JobError::Fault(fault)) = JobFile::parse(&text) {
            prop_assert!(fault.line <= lines.len() + 1, "{}", fault);
        }
    }

    #[test]
    fn a_damaged_job_is_a_job_or_an_error(at in any::<prop::sample::Index>(), c in any::<char>()) {
        let mut text: Vec<char> = SMALLEST.chars().collect();
        let at = at.index(text.len());
        text[at] = c;
        let _ = JobFile::parse(&text.iter().collect::<String>());
    }
}

const KEYS: [&str; 22] = [
    "[model]",
    "[data]",
    "[data.split]",
    "[train]",
    "[train.optimiser]",
    "[stop]",
    "[strategy.exchange]",
    "[checkpoint]",
    "[[model]]",
    "kind",
    "alpha",
    "shards",
    "split",
    "batch",
    "optimiser",
    "lr",
    "accuracy",
    "every",
    "model.kind",
    "steps",
    "most",
    "\"a.b\"",
];

const VALUES: [&str; 12] = [
    "0",
    "-1",
    "1e308",
    "nan",
    "-inf",
    "'cnn'",
    "'mlp'",
    "true",
    "[1, [2, {}]]",
    "{ kind = 'sgd', lr = 0.1 }",
    "{ kind = 'iid', shards = 2 }",
    "1979-05-27",
];
