//! Commands against a node that is played by the test: what they ask, print, and end with.

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::Path;
use std::rc::Rc;

use skein_gossip::ids::{JobId, PeerId};
use tokio::sync::mpsc;

use super::args::{ExportArgs, TrainArgs};
use super::*;
use crate::control::status::tests::job_status;
use crate::control::{ErrorCode, Incoming, JobStatus, Phase, Request, Response, Server};

/// What a command printed.
#[derive(Clone, Default)]
pub(super) struct Printed(Rc<RefCell<Vec<u8>>>);

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Printed {
    pub(super) fn output(json: bool) -> (Output, Self) {
        let printed = Self::default();
        (Output::to(json, printed.clone()), printed)
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.borrow().clone()).unwrap()
    }
}

/// A home with a node that answers with what `answers` returns; the last of the answers ends the connection.
async fn node(
    answers: impl Fn(Request) -> Vec<Response> + 'static,
) -> (tempfile::TempDir, impl Future<Output = ()>) {
    let home = tempfile::tempdir().unwrap();
    let (sender, mut incoming) = mpsc::channel::<Incoming>(4);
    let server = Server::bind(home.path(), sender).await.unwrap();
    let driver = async move {
        let _server = server;
        while let Some(Incoming { request, reply }) = incoming.recv().await {
            let mut answers = answers(request);
            let last = answers.pop().unwrap();
            for answer in answers {
                reply.send(answer);
            }
            reply.finish(last);
        }
    };
    (home, driver)
}

/// Runs `command` while the node answers.
async fn with<T>(driver: impl Future<Output = ()>, command: impl Future<Output = T>) -> T {
    tokio::select! {
        result = command => result,
        () = driver => panic!("the node ended first"),
    }
}

fn job_file(folder: &Path, text: &str) -> TrainArgs {
    let file = folder.join("job.toml");
    std::fs::write(&file, text).unwrap();
    TrainArgs {
        file,
        detach: false,
    }
}

const JOB: &str =
    "name = 'digits'\nstrategy = 'exchange'\n[model]\nkind = 'cnn'\n[stop]\nsteps = 5\n";

fn trains(request: Request, end: Phase) -> Vec<Response> {
    let progress = |phase| {
        Response::Progress(Box::new(JobStatus {
            phase,
            ..job_status()
        }))
    };
    match request {
        Request::Train { job } => {
            assert_eq!(job, JOB);
            vec![Response::Accepted {
                job: JobId([1; 32]).into(),
                name: "digits".into(),
            }]
        }
        Request::Watch { job } => {
            assert_eq!(job, JobId([1; 32]));
            vec![
                progress(Phase::Waiting),
                progress(Phase::Running),
                progress(end),
            ]
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn train_prints_lines_and_a_report_and_ends_with_the_job() {
    let (home, driver) = node(|request| trains(request, Phase::Done)).await;
    let (output, printed) = Printed::output(false);
    let exit = with(
        driver,
        train::train(home.path(), job_file(home.path(), JOB), &output),
    )
    .await
    .unwrap();
    assert_eq!(exit, Exit::Ok);
    let text = printed.text();
    for part in [
        "has the id 0101",
        "digits waiting",
        "digits step 5",
        "accuracy 97.00 %",
        "model hash: 0303",
        "80 x",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[tokio::test]
async fn train_as_json_is_one_object_per_line_and_a_failed_job_exits_with_1() {
    let (home, driver) = node(|request| trains(request, Phase::Failed)).await;
    let (output, printed) = Printed::output(true);
    let exit = with(
        driver,
        train::train(home.path(), job_file(home.path(), JOB), &output),
    )
    .await
    .unwrap();
    assert_eq!(exit, Exit::Failed);
    let kinds: Vec<String> = printed
        .text()
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["kind"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(kinds, ["accepted", "progress", "progress", "progress"]);
}

#[tokio::test]
async fn a_detached_train_does_not_watch() {
    let (home, driver) = node(|request| match request {
        Request::Watch { .. } => panic!("not asked for"),
        request => trains(request, Phase::Done),
    })
    .await;
    let (output, printed) = Printed::output(false);
    let args = TrainArgs {
        detach: true,
        ..job_file(home.path(), JOB)
    };
    assert_eq!(
        with(driver, train::train(home.path(), args, &output))
            .await
            .unwrap(),
        Exit::Ok
    );
    assert_eq!(printed.text().lines().count(), 1);
}

#[tokio::test]
async fn a_node_that_ends_while_it_is_watched_is_said_so() {
    let (home, driver) = node(|request| match request {
        Request::Watch { .. } => vec![Response::Progress(Box::new(job_status()))],
        request => trains(request, Phase::Done),
    })
    .await;
    let (output, _) = Printed::output(false);
    let error = with(
        driver,
        train::train(home.path(), job_file(home.path(), JOB), &output),
    )
    .await
    .unwrap_err();
    assert_eq!(error.exit, Exit::NoNode);
    assert!(error.message.contains("goes on"), "{error}");
}

#[tokio::test]
async fn a_bad_job_file_is_refused_before_any_node_is_asked() {
    let home = tempfile::tempdir().unwrap();
    let (output, _) = Printed::output(false);
    let train = |args| train::train(home.path(), args, &output);
    let error = train(job_file(home.path(), "sede = 1\n"))
        .await
        .unwrap_err();
    assert_eq!(error.exit, Exit::Usage);
    assert!(
        error.message.contains("job.toml: line 1") && error.message.contains("`seed`"),
        "{error}"
    );
    let error = train(job_file(home.path(), JOB)).await.unwrap_err();
    assert_eq!(error.exit, Exit::NoNode);
    let absent = TrainArgs {
        file: home.path().join("absent.toml"),
        detach: false,
    };
    assert_eq!(train(absent).await.unwrap_err().exit, Exit::NotFound);
    let args = job_file(home.path(), "");
    std::fs::write(&args.file, b"seed = 1\nname = '\xff'").unwrap();
    assert!(
        train(args)
            .await
            .unwrap_err()
            .message
            .contains("line 2 is not UTF-8")
    );
}

#[tokio::test]
async fn questions_are_asked_and_their_answers_printed() {
    let (home, driver) = node(|request| {
        let job = JobId([1; 32]);
        vec![match request {
            Request::Jobs => Response::Jobs {
                jobs: vec![job_status()],
            },
            Request::Peers => Response::Peers { peers: vec![] },
            Request::Stop { job: asked } if asked == job => Response::Stopped { job: job.into() },
            Request::Export { path, .. } => {
                assert!(path.is_absolute());
                let best = job_status().best.unwrap();
                Response::Exported(crate::control::protocol::Exported {
                    job: job.into(),
                    path,
                    bytes: 5_000_000,
                    best,
                })
            }
            Request::Status => Response::Status(Box::new(crate::control::Status {
                peer: PeerId([7; 32]).into(),
                mesh: "grey-goose".into(),
                version: "0.1.0".into(),
                listening: vec!["10.0.0.1:4001".into()],
                uptime_s: 61,
                jobs: vec![],
                join_line: "skein up --join T".into(),
            })),
            Request::Leave => Response::Leaving,
            other => panic!("{other:?}"),
        }]
    })
    .await;
    let (output, printed) = Printed::output(false);
    let path = home.path();
    let export = ExportArgs {
        job: "0101".into(),
        output: path.join("m.safetensors"),
    };
    let lost = ExportArgs {
        job: "0101".into(),
        output: path.join("absent/m.safetensors"),
    };
    with(driver, async {
        assert_eq!(ask::status(path, &output).await.unwrap(), Exit::Ok);
        ask::peers(path, &output).await.unwrap();
        ask::jobs(path, &output).await.unwrap();
        ask::stop(path, "digits", &output).await.unwrap();
        ask::export(path, export, &output).await.unwrap();
        assert_eq!(
            ask::export(path, lost, &output).await.unwrap_err().exit,
            Exit::NotFound
        );
        assert_eq!(
            ask::stop(path, "mnist", &output).await.unwrap_err().exit,
            Exit::NotFound
        );
        ask::leave(path, &output).await.unwrap();
    })
    .await;
    let text = printed.text();
    for part in [
        "grey-goose",
        "skein up --join T",
        "1 min 01 s",
        "no other peers",
        "running",
        "is ending",
        "5.0 MB",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[tokio::test]
async fn what_the_node_refuses_chooses_the_exit_code() {
    for (code, exit) in [
        (ErrorCode::NotFound, Exit::NotFound),
        (ErrorCode::Refused, Exit::Refused),
        (ErrorCode::Unreachable, Exit::Refused),
        (ErrorCode::BadJob, Exit::Usage),
        (ErrorCode::Internal, Exit::Internal),
    ] {
        let failure = crate::control::Failure {
            code,
            message: "no".into(),
            fix: "yes".into(),
        };
        let (home, driver) = node(move |_| vec![Response::Error(failure.clone())]).await;
        let (output, _) = Printed::output(false);
        let error = with(driver, ask::status(home.path(), &output))
            .await
            .unwrap_err();
        assert_eq!((error.exit, error.message.as_str()), (exit, "no\nfix: yes"));
    }
}

#[test]
fn the_whole_command_line_ends_with_documented_codes() {
    let home = tempfile::tempdir().unwrap();
    let run = |args: &[&str], env: &[(&str, &str)]| {
        let home = home.path().display().to_string();
        let args = ["skein", "--home", &home, "--json"]
            .into_iter()
            .chain(args.iter().copied())
            .map(OsString::from);
        let env = env.iter().map(|(name, value)| (name.into(), value.into()));
        main(args.collect::<Vec<_>>(), env, |_, up| {
            Ok(if up.no_mdns { Exit::Ok } else { Exit::Failed })
        })
    };
    assert_eq!(run(&["status"], &[]), Exit::NoNode);
    assert_eq!(run(&["fly"], &[]), Exit::Usage);
    assert_eq!(run(&["--help"], &[]), Exit::Ok);
    assert_eq!(run(&["status"], &[("SKEIN_HOEM", "/")]), Exit::Usage);
    assert_eq!(run(&["up", "--no-mdns"], &[]), Exit::Ok);
    assert_eq!(run(&["up"], &[]), Exit::Failed);
    assert_eq!(run(&["train", "/absent.toml"], &[]), Exit::NotFound);
}
