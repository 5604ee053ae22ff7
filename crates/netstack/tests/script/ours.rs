//! Our stack as the subject of a script, under a clock that jumps.

use std::net::SocketAddrV4;
use std::time::Duration;

use bytes::Bytes;
use netstack::tcp::{CallError, Secret};
use netstack::wire::arp;
use netstack::wire::ethernet::{self, EtherType, MacAddress};
use netstack::{
    Addresses, ConnectionId, FRAME_MAX, FrameFate, ListenerId, Neighbouring, Settings, Stack,
    Unlistened,
};

use super::Subject;
use super::language::{self, Call};
use super::packet::{OUR_ADDRESS, PORT, THEIR_ADDRESS, byte_at};

const OUR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const THEIR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

/// The stack, and what the application of a script has of it.
pub(crate) struct Ours {
    stack: Stack,
    now: Duration,
    backlog: usize,
    listener: Option<ListenerId>,
    connection: Option<ConnectionId>,
    written: i64,
    read: i64,
}

impl Ours {
    pub(crate) fn new(settings: &language::Settings) -> Ours {
        Ours {
            stack: Stack::new(Settings {
                mac: OUR_MAC,
                addresses: Addresses::These(vec![OUR_ADDRESS]),
                prefix_length: 24,
                gateway: None,
                neighbouring: Neighbouring::Asks,
                tcp: settings.tcp.clone(),
                unlistened: Unlistened::Refuse,
                connections_max: settings.connections_max,
                memory_max: settings.memory_max,
                secret: Secret([11, 12]),
            }),
            now: Duration::ZERO,
            backlog: settings.backlog,
            listener: None,
            connection: None,
            written: 0,
            read: 1,
        }
    }

    fn connection(&self) -> Result<ConnectionId, String> {
        self.connection.ok_or("there is no connection".to_owned())
    }

    /// Everything that is to leave now. ARP is answered and not shown.
    fn left(&mut self, left: &mut Vec<(Duration, Vec<u8>)>) {
        let mut frame = [0; FRAME_MAX];
        while let Some(length) = self.stack.poll_frame(self.now, &mut frame) {
            let frame = &frame[..length];
            let (header, payload) = ethernet::Header::parse(frame).unwrap();
            if header.kind != EtherType::Arp {
                left.push((self.now, payload.to_vec()));
                continue;
            }
            let asked = arp::Message::parse(payload).unwrap();
            if asked.operation == arp::Operation::Request && asked.target == THEIR_ADDRESS {
                let reply = arp::Message {
                    operation: arp::Operation::Reply,
                    sender_mac: THEIR_MAC,
                    sender: THEIR_ADDRESS,
                    target_mac: OUR_MAC,
                    target: OUR_ADDRESS,
                };
                let mut bytes = [0; arp::LENGTH];
                reply.emit(&mut bytes);
                self.give(EtherType::Arp, &bytes);
            }
        }
    }

    fn give(&mut self, kind: EtherType, payload: &[u8]) {
        let mut frame = vec![0; ethernet::HEADER];
        let header = ethernet::Header {
            destination: OUR_MAC,
            source: THEIR_MAC,
            kind,
        };
        header.emit(&mut frame);
        frame.extend_from_slice(payload);
        let verdict = self.stack.handle_frame(self.now, &frame);
        assert_eq!(verdict, FrameFate::Taken);
    }

    fn write(&mut self, count: usize) -> Result<usize, String> {
        let bytes: Bytes = (self.written..self.written + count as i64)
            .map(byte_at)
            .collect();
        let id = self.connection()?;
        let taken = self.stack.send(id, bytes);
        let taken = taken.map_err(|error| error.to_string())?;
        self.written += taken as i64;
        Ok(taken)
    }

    fn receive(&mut self, count: usize) -> Result<Result<Option<usize>, CallError>, String> {
        let mut into = vec![0; count];
        let id = self.connection()?;
        let received = self.stack.receive(id, &mut into);
        if let Ok(Some(count)) = received {
            let should = (self.read..).map(byte_at);
            if into[..count]
                .iter()
                .zip(should)
                .any(|(is, should)| *is != should)
            {
                return Err("other bytes".to_owned());
            }
            self.read += count as i64;
        }
        Ok(received)
    }
}

impl Subject for Ours {
    fn advance(&mut self, until: Duration) -> Vec<(Duration, Vec<u8>)> {
        let mut left = Vec::new();
        loop {
            self.left(&mut left);
            if !left.is_empty() {
                return left;
            }
            match self.stack.next_deadline() {
                Some(at) if at <= until => self.now = self.now.max(at),
                _ => break,
            }
            self.stack.handle_timeout(self.now);
        }
        self.now = self.now.max(until);
        left
    }

    fn take(&mut self, packet: &[u8]) {
        self.give(EtherType::Ipv4, packet);
    }

    fn call(&mut self, call: &Call) -> Result<(), String> {
        let expect = |is: String, should: &str| {
            if is == should {
                Ok(())
            } else {
                Err(format!("{is} instead of {should}"))
            }
        };
        let errs = |error: CallError| error.to_string();
        let now = self.now;
        match call {
            Call::Listen => {
                let address = SocketAddrV4::new(OUR_ADDRESS, PORT);
                let listener = self.stack.listen(address, self.backlog);
                self.listener = Some(listener.map_err(|error| format!("{error:?}"))?);
                Ok(())
            }
            Call::Connect => {
                let to = SocketAddrV4::new(THEIR_ADDRESS, PORT);
                let connection = self.stack.connect(now, None, to);
                self.connection = Some(connection.map_err(|error| format!("{error:?}"))?);
                Ok(())
            }
            Call::Accept | Call::NothingToAccept => {
                let listener = self.listener.ok_or("nobody listens")?;
                let accepted = self.stack.accept(listener).map(|(id, _)| id);
                match (accepted, call) {
                    (None, Call::NothingToAccept) => Ok(()),
                    (Some(id), Call::Accept) => {
                        self.connection = Some(id);
                        Ok(())
                    }
                    _ => Err(format!("accepted {accepted:?}")),
                }
            }
            Call::Write(count) => expect(self.write(*count)?.to_string(), &count.to_string()),
            Call::WriteSome(count, taken) => {
                expect(self.write(*count)?.to_string(), &taken.to_string())
            }
            Call::Read(count) => {
                let received = self.receive(*count)?;
                expect(format!("{received:?}"), &format!("Ok(Some({count}))"))
            }
            Call::ReadNothing => expect(format!("{:?}", self.receive(1)?), "Ok(None)"),
            Call::ReadEnd => expect(format!("{:?}", self.receive(1)?), "Ok(Some(0))"),
            Call::ReadError(reason) => {
                let should = format!("Err(Ended({reason}))");
                expect(format!("{:?}", self.receive(1)?), &should)
            }
            Call::Finish => self.stack.finish(self.connection()?).map_err(errs),
            Call::Release => {
                self.stack.release(now, self.connection()?);
                Ok(())
            }
            Call::Abort => {
                self.stack.abort(self.connection()?);
                Ok(())
            }
            Call::KeepAlive(settings) => {
                let id = self.connection()?;
                self.stack.set_keep_alive(id, Some(*settings)).map_err(errs)
            }
            Call::Gone => {
                let left = (self.stack.connections(), self.stack.memory());
                expect(format!("{left:?}"), "(0, 0)")
            }
        }
    }

    fn tolerance(&self) -> Duration {
        // Deadlines are rounded up to milliseconds.
        Duration::from_millis(1)
    }
}
