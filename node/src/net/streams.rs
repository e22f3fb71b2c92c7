//! A swarm behaviour that opens and accepts raw streams, one connection at a time.
//!
//! libp2p-stream does the same without saying which connection a stream belongs to (needed to tell two processes with one
//! identity apart), drops inbound streams when two arrive at once, and dials on its own account; hence this one. It also
//! keeps connections open for as long as both sides live.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::task::{Context, Poll};

use libp2p::core::transport::PortUse;
use libp2p::core::{Endpoint, InboundUpgrade, OutboundUpgrade, UpgradeInfo};
use libp2p::swarm::handler::{
    ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound,
};
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm,
    NetworkBehaviour, NotifyHandler, Stream, StreamProtocol, StreamUpgradeError, SubstreamProtocol,
    THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use tokio::sync::oneshot;

/// Greetings; its name outlives wire versions, so that peers of different versions can say so.
pub(super) const GREETING: StreamProtocol = StreamProtocol::new("/skein/greeting");
/// Small messages.
pub(super) const CONTROL: StreamProtocol = StreamProtocol::new("/skein/control/1");
/// Gradient packets.
pub(super) const UPDATE: StreamProtocol = StreamProtocol::new("/skein/update/1");
/// One request and its response.
pub(super) const REQUEST: StreamProtocol = StreamProtocol::new("/skein/request/1");

/// Where an opened stream, or the reason why there is none, goes.
pub(super) type Opened = oneshot::Sender<io::Result<Stream>>;

/// A stream that a peer opened.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) connection: ConnectionId,
    pub(super) protocol: StreamProtocol,
    pub(super) stream: Stream,
}

/// See the module's header.
#[derive(Default)]
pub(super) struct Behaviour {
    /// At most what was asked for and accepted since the last poll.
    actions: VecDeque<ToSwarm<Accepted, Open>>,
}

impl Behaviour {
    /// Opens a stream on `connection`; if that is gone, `reply` is dropped.
    pub(super) fn open(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        protocol: StreamProtocol,
        reply: Opened,
    ) {
        let event = Open { protocol, reply };
        self.actions.push_back(ToSwarm::NotifyHandler {
            peer_id: peer,
            handler: NotifyHandler::One(connection),
            event,
        });
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Accepted;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(Handler::default())
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(Handler::default())
    }

    fn on_swarm_event(&mut self, _: FromSwarm) {}

    fn on_connection_handler_event(
        &mut self,
        _: PeerId,
        connection: ConnectionId,
        (protocol, stream): THandlerOutEvent<Self>,
    ) {
        self.actions.push_back(ToSwarm::GenerateEvent(Accepted {
            connection,
            protocol,
            stream,
        }));
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        // Nothing to wake: the swarm polls again after whoever called `open`, since both run in one task.
        self.actions.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}

/// The request to open a stream.
#[derive(Debug)]
pub(super) struct Open {
    protocol: StreamProtocol,
    reply: Opened,
}

/// The part of the behaviour that lives with one connection.
#[derive(Default)]
pub(super) struct Handler {
    wanted: VecDeque<Open>,
    accepted: VecDeque<(StreamProtocol, Stream)>,
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Open;
    type ToBehaviour = (StreamProtocol, Stream);
    type InboundProtocol = Raw;
    type OutboundProtocol = Raw;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = Opened;

    fn listen_protocol(&self) -> SubstreamProtocol<Raw, ()> {
        SubstreamProtocol::new(Raw(vec![GREETING, CONTROL, UPDATE, REQUEST]), ())
    }

    fn connection_keep_alive(&self) -> bool {
        true
    }

    fn poll(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Raw, Self::OutboundOpenInfo, Self::ToBehaviour>> {
        if let Some(accepted) = self.accepted.pop_front() {
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(accepted));
        }
        // The connection's task polls again after `on_behaviour_event`.
        self.wanted.pop_front().map_or(Poll::Pending, |open| {
            let protocol = SubstreamProtocol::new(Raw(vec![open.protocol]), open.reply);
            Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol })
        })
    }

    fn on_behaviour_event(&mut self, open: Open) {
        self.wanted.push_back(open);
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<Raw, Raw, (), Opened>) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound {
                protocol, ..
            }) => {
                self.accepted.push_back(protocol);
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound {
                protocol: (_, stream),
                info,
            }) => {
                // Whoever asked may have given up; the stream is closed then.
                let _ = info.send(Ok(stream));
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, error }) => {
                let error = match error {
                    StreamUpgradeError::Timeout => io::ErrorKind::TimedOut.into(),
                    StreamUpgradeError::NegotiationFailed => io::Error::new(
                        io::ErrorKind::Unsupported,
                        "the peer does not speak this protocol",
                    ),
                    StreamUpgradeError::Io(error) => error,
                };
                let _ = info.send(Err(error));
            }
            _ => {}
        }
    }
}

/// An upgrade that hands over the stream as it is.
pub(super) struct Raw(Vec<StreamProtocol>);

impl UpgradeInfo for Raw {
    type Info = StreamProtocol;
    type InfoIter = std::vec::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.clone().into_iter()
    }
}

impl InboundUpgrade<Stream> for Raw {
    type Output = (StreamProtocol, Stream);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((protocol, stream)))
    }
}

impl OutboundUpgrade<Stream> for Raw {
    type Output = (StreamProtocol, Stream);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_outbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((protocol, stream)))
    }
}
