//! Client and server against each other on a real socket, and the decoders against arbitrary bytes.

use proptest::prelude::*;
use skein_gossip::ids::{Digest, JobId, PeerId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::protocol::{Evaluated, Exported, MAX_REQUEST_BYTES};
use super::server::MAX_CLIENTS;
use super::status::PeerState;
use super::status::tests::job_status;
use super::*;

fn at_step(step: u64, phase: Phase) -> JobStatus {
    JobStatus {
        step,
        phase,
        ..job_status()
    }
}

fn requests() -> Vec<Request> {
    let job = JobId([7; 32]);
    vec![
        Request::Status,
        Request::Peers,
        Request::Jobs,
        Request::Train {
            job: "name = \"é\"\n\"quoted\"".into(),
        },
        Request::Watch { job },
        Request::Stop { job },
        Request::Export {
            job,
            path: "/tmp/model.safetensors".into(),
        },
        Request::EvalJob { job },
        Request::Doctor,
        Request::Leave,
    ]
}

#[test]
fn every_request_is_read_as_it_was_written() {
    for request in requests() {
        let line = request.encode().unwrap();
        assert!(!line.contains('\n'), "{line}");
        assert_eq!(Request::decode(line.as_bytes()), Ok(request));
    }
}

#[test]
fn requests_that_are_none_get_a_typed_error() {
    let check = |line: &str, expected: &str| {
        let error = Request::decode(line.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{line}: {error}");
    };
    check("", "not a JSON object");
    check("[]", "not a JSON object");
    check(r#"{"command":"status"}"#, "missing field `v`");
    check(r#"{"v":2,"command":"status","new":1}"#, "version 2");
    check(r#"{"v":1,"command":"statsu"}"#, "did you mean \"status\"");
    check(r#"{"v":1,"command":"fly"}"#, "no command \"fly\"");
    check(
        r#"{"v":1,"command":"status","job":"x"}"#,
        "\"job\" does not belong",
    );
    check(r#"{"v":1,"command":"stop","job":"x"}"#, "not a job id");
    check(r#"{"v":1,"command":"stop"}"#, "\"job\" is missing");
    check(r#"{"v":1,"command":"train"}"#, "\"job\" is missing");
    check(r#"{"v":1,"command":"stop","colour":1}"#, "colour");
    let export = format!(
        r#"{{"v":1,"command":"export","job":"{}","path":"model"}}"#,
        JobId([1; 32])
    );
    check(&export, "not absolute");
    check(&"x".repeat(MAX_REQUEST_BYTES + 1), "more than");
}

#[test]
fn every_response_is_read_as_it_was_written() {
    let status = job_status();
    let peer = PeerStatus {
        id: Some(PeerId([9; 32]).into()),
        addresses: vec!["/ip4/10.0.0.1/tcp/4001".into()],
        state: PeerState::OneWay,
        via: "mdns".into(),
        rtt_ms: Some(1.5),
        reason: Some("connection refused".into()),
        bytes_in: 1,
        bytes_out: 2,
        version: None,
        clock_offset_ms: Some(-20),
    };
    let best = status.best.clone().unwrap();
    for response in [
        Response::Jobs {
            jobs: vec![status.clone()],
        },
        Response::Peers { peers: vec![peer] },
        Response::Progress(Box::new(status)),
        Response::Accepted {
            job: JobId([1; 32]).into(),
            name: "a".into(),
        },
        Response::Exported(Exported {
            job: JobId([1; 32]).into(),
            path: "/m".into(),
            bytes: 5,
            best,
        }),
        Response::Evaluated(Evaluated {
            accuracy: 0.5,
            loss: None,
            samples: 10,
            model_hash: Digest([0; 32]).into(),
        }),
        Response::Doctor(Default::default()),
        Response::Leaving,
        Response::Error(Failure {
            code: ErrorCode::NotFound,
            message: "m".into(),
            fix: String::new(),
        }),
    ] {
        let line = response.encode();
        assert!(line.starts_with(r#"{"v":1,"kind":""#), "{line}");
        assert_eq!(Response::decode(line.as_bytes()), Ok(response));
    }
}

#[test]
fn a_loss_that_is_not_a_number_arrives_as_unknown() {
    let line = Response::Progress(Box::new(JobStatus {
        train_loss: Some(f64::NAN),
        ..job_status()
    }))
    .encode();
    let Ok(Response::Progress(status)) = Response::decode(line.as_bytes()) else {
        panic!("{line}")
    };
    assert_eq!(status.train_loss, None);
}

#[tokio::test]
async fn a_question_reaches_the_driver_and_its_answer_the_client() {
    let home = tempfile::tempdir().unwrap();
    let (sender, mut incoming) = mpsc::channel(4);
    let server = Server::bind(home.path(), sender).await.unwrap();
    let driver = async {
        let Incoming { request, reply } = incoming.recv().await.unwrap();
        assert_eq!(request, Request::Jobs);
        assert!(reply.finish(Response::Jobs { jobs: vec![] }));
    };
    let (answer, ()) = tokio::join!(Client::ask(home.path(), &Request::Jobs), driver);
    assert_eq!(answer.unwrap(), Response::Jobs { jobs: vec![] });
    drop(server);
    let error = Client::ask(home.path(), &Request::Jobs).await.unwrap_err();
    assert!(matches!(error, ClientError::NoNode { .. }), "{error}");
    assert!(error.to_string().contains("skein up"), "{error}");
}

#[tokio::test]
async fn a_watch_gets_many_lines_and_always_the_last() {
    let home = tempfile::tempdir().unwrap();
    let (sender, mut incoming) = mpsc::channel(4);
    let _server = Server::bind(home.path(), sender).await.unwrap();
    let mut client = Client::open(
        home.path(),
        &Request::Watch {
            job: JobId([1; 32]),
        },
    )
    .await
    .unwrap();
    let Incoming { reply, .. } = incoming.recv().await.unwrap();
    let mut dropped = 0;
    for step in 0..1000 {
        match reply.send(Response::Progress(Box::new(at_step(step, Phase::Running)))) {
            server::Delivery::Queued => {}
            server::Delivery::Dropped => dropped += 1,
            server::Delivery::Gone => panic!("the client is there"),
        }
    }
    assert!(
        dropped > 0,
        "a client that does not read must not grow the queue"
    );
    reply.finish(Response::Progress(Box::new(at_step(1000, Phase::Done))));
    let mut last = None;
    while let Some(response) = client.next().await.unwrap() {
        last = Some(response);
    }
    let Some(Response::Progress(status)) = last else {
        panic!("{last:?}")
    };
    assert_eq!((status.step, status.phase), (1000, Phase::Done));
}

#[tokio::test]
async fn a_client_that_says_nothing_does_not_block_others_and_too_many_are_turned_away() {
    let home = tempfile::tempdir().unwrap();
    let (sender, mut incoming) = mpsc::channel(MAX_CLIENTS);
    let _server = Server::bind(home.path(), sender).await.unwrap();
    let path = home.path().join(socket::SOCKET_NAME);
    let mut silent = vec![];
    for _ in 0..MAX_CLIENTS - 1 {
        silent.push(UnixStream::connect(&path).await.unwrap());
    }
    let mut asking = Client::open(home.path(), &Request::Status).await.unwrap();
    let Incoming { reply, .. } = incoming.recv().await.unwrap();
    let error = Client::ask(home.path(), &Request::Peers).await.unwrap_err();
    assert!(
        matches!(&error, ClientError::Failed(failure) if failure.code == ErrorCode::Refused),
        "{error}"
    );
    assert!(reply.fail(ErrorCode::NotFound, "no such job", "see `skein jobs`"));
    let error = asking.next().await.unwrap_err();
    assert_eq!(error.to_string(), "no such job\nfix: see `skein jobs`");
}

#[tokio::test]
async fn nonsense_on_the_socket_is_answered_with_an_error_and_an_end() {
    let home = tempfile::tempdir().unwrap();
    let (sender, _incoming) = mpsc::channel(1);
    let _server = Server::bind(home.path(), sender).await.unwrap();
    let mut stream = UnixStream::connect(home.path().join(socket::SOCKET_NAME))
        .await
        .unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("bad_request"), "{answer}");
}

#[tokio::test]
async fn a_closing_node_still_gives_its_last_answer() {
    let home = tempfile::tempdir().unwrap();
    let (sender, mut incoming) = mpsc::channel(1);
    let server = Server::bind(home.path(), sender).await.unwrap();
    let driver = async {
        incoming
            .recv()
            .await
            .unwrap()
            .reply
            .finish(Response::Leaving);
        server.close(std::time::Duration::from_secs(5)).await;
    };
    let (answer, ()) = tokio::join!(Client::ask(home.path(), &Request::Leave), driver);
    assert_eq!(answer.unwrap(), Response::Leaving);
    assert!(!home.path().join(socket::SOCKET_NAME).exists());
}

#[tokio::test]
async fn a_node_that_drops_a_request_says_so() {
    let home = tempfile::tempdir().unwrap();
    let (sender, mut incoming) = mpsc::channel(1);
    let _server = Server::bind(home.path(), sender).await.unwrap();
    let driver = async { drop(incoming.recv().await.unwrap().reply) };
    let (answer, ()) = tokio::join!(Client::ask(home.path(), &Request::Leave), driver);
    assert!(
        answer
            .unwrap_err()
            .to_string()
            .contains("ended before it answered")
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_a_request_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Request::decode(&bytes);
        let _ = Response::decode(&bytes);
    }

    #[test]
    fn a_damaged_request_is_a_request_or_an_error(which in 0..10_usize, at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut line = requests()[which].encode().unwrap().into_bytes();
        let at = at.index(line.len());
        line[at] = byte;
        let _ = Request::decode(&line);
        line.truncate(at);
        prop_assert!(Request::decode(&line).is_err());
    }
}
