//! Answers to the command line of this machine.

use std::net::SocketAddr;
use std::time::Duration;

use skein_gossip::ids::JobId;
use skein_gossip::message::Message;
use skein_gossip::wire::codec;
use tokio::sync::oneshot;

use super::Mesh;
use super::key::join_line;
use crate::control::status::{NodeFacts, PeerState};
use crate::control::{
    ErrorCode, Failure, Hex, Incoming, JobStatus, PeerStatus, Phase, Reply, Request, Response,
    Status,
};
use crate::job::strategy::Kind;
use crate::job::{JobFile, SignedJob};
use crate::net;
use crate::run::STOPPED_BY;
use crate::run::driver::Event;
use crate::run::journal::now_ms;
use crate::run::serve::Question;

/// Time between two lines of a watch.
const WATCH_EVERY: Duration = Duration::from_millis(500);

impl Mesh {
    /// Answers one request. True where the node is to leave.
    pub(super) async fn on_request(&mut self, incoming: Incoming) -> bool {
        let Incoming { request, reply } = incoming;
        match request {
            Request::Status => {
                let status = Status {
                    peer: Hex(self.net.local()),
                    mesh: self.mesh_key.name(),
                    version: env!("CARGO_PKG_VERSION").into(),
                    listening: self.net.listen_addresses().await,
                    uptime_s: self.began.elapsed().as_secs(),
                    jobs: self.job_list(),
                    join_line: self.join_line_now().await,
                };
                reply.finish(Response::Status(Box::new(status)));
            }
            Request::Peers => {
                reply.finish(Response::Peers {
                    peers: self.peer_list().await,
                });
            }
            Request::Jobs => {
                reply.finish(Response::Jobs {
                    jobs: self.job_list(),
                });
            }
            Request::Train { job } => self.train(job, reply),
            Request::Watch { job } => self.watch(job, reply),
            Request::Stop { job } => match self.jobs.get(&job) {
                Some(known) if is_over(known.handle.status.borrow().phase) => {
                    reply.fail(
                        ErrorCode::Refused,
                        format!("job {} is over already", job.short()),
                        "`skein jobs` lists those that run",
                    );
                }
                Some(known) => {
                    let reason = format!("{STOPPED_BY}{}", self.net.local().short());
                    super::to_job(&known.handle, Event::Stop(reason));
                    reply.finish(Response::Stopped { job: Hex(job) });
                }
                None => unknown(job, reply),
            },
            Request::Export { job, path } => {
                let (answer, question) = oneshot::channel();
                self.ask(job, Question::Export(path, answer), question, reply);
            }
            Request::EvalJob { job } => {
                let (answer, question) = oneshot::channel();
                self.ask(job, Question::Evaluate(answer), question, reply);
            }
            Request::Doctor => {
                let discovery = self.net.discovery().await;
                let (ours, foreign) = discovery
                    .as_ref()
                    .map_or((0, 0), |found| (found.ours, found.foreign));
                let facts = NodeFacts {
                    peers: self.peer_list().await,
                    mdns_error: discovery.and_then(|discovery| discovery.mdns_error),
                    announcements: ours as u64,
                    foreign_announcements: foreign as u64,
                    training_threads: skein_model::runtime::threads() as u32,
                    listening: self.net.listen_addresses().await,
                };
                reply.finish(Response::Doctor(facts));
            }
            Request::Leave => {
                reply.finish(Response::Leaving);
                return true;
            }
        }
        false
    }

    /// The line to join by, with addresses of other peers too: it then works after this one is gone.
    async fn join_line_now(&self) -> String {
        let own = self.net.listen_addresses().await;
        let peers = self.net.peers().await;
        let connected = peers
            .iter()
            .filter(|peer| matches!(peer.state, net::PeerState::Connected { .. }));
        let others = connected.filter_map(|peer| peer.addresses.first().cloned());
        let some = own.into_iter().take(2).chain(others);
        let addresses: Vec<SocketAddr> = some.filter_map(|address| address.parse().ok()).collect();
        join_line(&self.mesh_key, &addresses)
    }

    fn job_list(&self) -> Vec<JobStatus> {
        let mut jobs: Vec<_> = self.jobs.values().collect();
        jobs.sort_by_key(|job| std::cmp::Reverse(job.submitted_at_ms));
        jobs.iter()
            .map(|job| job.handle.status.borrow().clone())
            .collect()
    }

    async fn peer_list(&self) -> Vec<PeerStatus> {
        let mut peers: Vec<PeerStatus> = self
            .net
            .peers()
            .await
            .into_iter()
            .map(PeerStatus::from)
            .collect();
        peers.sort_by_key(|peer| (peer.state != PeerState::Connected, peer.id));
        peers
    }

    fn train(&mut self, text: String, reply: Reply) {
        let file = match JobFile::parse(&text) {
            Ok(file) => file,
            Err(error) => {
                reply.fail(ErrorCode::BadJob, error.to_string(), "");
                return;
            }
        };
        if file.strategy.kind == Kind::Auto {
            let fix =
                "hand it in with `skein train`, which lets the mesh measure the model and chooses";
            reply.fail(ErrorCode::BadJob, "strategy.kind is auto", fix);
            return;
        }
        let signed = SignedJob::sign(&self.identity, text, now_ms());
        let encoded = signed.encode();
        match self.take(signed) {
            Ok(id) => {
                if let Err(error) = self
                    .net
                    .publish(codec::encode(&Message::Job(encoded.clone())))
                {
                    tracing::debug!(%error, "nobody to publish to");
                }
                // Whoever is connected gets it directly too: gossip may still be forming.
                for peer in &self.connected {
                    self.tell(*peer, &Message::Job(encoded.clone()));
                }
                reply.finish(Response::Accepted {
                    job: Hex(id),
                    name: file.name,
                });
            }
            Err(error) => {
                reply.fail(ErrorCode::Internal, super::refusal::in_words(&error), "");
            }
        }
    }

    fn watch(&self, job: JobId, reply: Reply) {
        let Some(known) = self.jobs.get(&job) else {
            return unknown(job, reply);
        };
        let mut status = known.handle.status.clone();
        tokio::spawn(async move {
            let mut pace = tokio::time::interval(WATCH_EVERY);
            loop {
                pace.tick().await;
                let now = status.borrow_and_update().clone();
                if now.phase.is_final() {
                    reply.finish(Response::Progress(Box::new(now)));
                    return;
                }
                if reply.is_gone() {
                    return;
                }
                reply.send(Response::Progress(Box::new(now)));
                if status.changed().await.is_err() {
                    let now = status.borrow().clone();
                    reply.finish(Response::Progress(Box::new(now)));
                    return;
                }
            }
        });
    }

    fn ask(
        &self,
        job: JobId,
        question: Question,
        answer: oneshot::Receiver<Response>,
        reply: Reply,
    ) {
        let Some(known) = self.jobs.get(&job) else {
            return unknown(job, reply);
        };
        super::to_job(&known.handle, Event::Ask(question));
        tokio::spawn(async move {
            let answer = answer.await.unwrap_or_else(|_| {
                Response::Error(Failure {
                    code: ErrorCode::Refused,
                    message: format!("job {} is busy", job.short()),
                    fix: "ask again in a moment".into(),
                })
            });
            reply.finish(answer);
        });
    }
}

/// Whether all peers have ended it. One that failed here may still be trained elsewhere.
fn is_over(phase: Phase) -> bool {
    matches!(phase, Phase::Done | Phase::Stopped)
}

fn unknown(job: JobId, reply: Reply) {
    reply.fail(
        ErrorCode::NotFound,
        format!("no job {} here", job.short()),
        "`skein jobs` lists them",
    );
}
