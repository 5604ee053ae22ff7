//! Clients that send messages and verify the echoes.

use std::io;
use std::time::Instant;

use bytes::Bytes;
use engine::net::{self, Datagram, DatagramSocket, Stream};
use engine::select::{Either, either};

use super::{EchoTraffic, SIZE_MIN, TICK, Thread};
use crate::tally::record;

/// Maximum number of bytes in flight on a connection, for [`EchoTraffic::Throughput`].
const WINDOW: u64 = 1 << 20;

/// Why a message was not echoed.
enum Failure {
    Wrong,
    Broken,
    Lost,
}

impl From<io::Error> for Failure {
    fn from(_: io::Error) -> Failure {
        Failure::Broken
    }
}

/// Runs one client until the end of the run or until all messages have been sent.
pub(super) async fn run(thread: &Thread, number: usize) {
    if thread.plan.work == EchoTraffic::Throughput {
        return stream_bytes(thread).await;
    }
    let mut client = Client {
        thread,
        stream: None,
        socket: None,
        next: (number as u64) << 32,
    };
    while thread.take_message() {
        let begin = Instant::now();
        let came_back = client.exchange().await;
        if thread.is_over.get() {
            return; // the run ended while the message was in flight
        }
        let failed = {
            let mut result = thread.result.borrow_mut();
            match &came_back {
                Ok(()) => {
                    result.messages += 1;
                    record(&mut result.times, begin.elapsed());
                }
                Err(Failure::Wrong) => result.wrong += 1,
                Err(Failure::Broken) => result.broken += 1,
                Err(Failure::Lost) => result.lost += 1,
            }
            matches!(came_back, Err(Failure::Wrong | Failure::Broken))
        };
        if failed {
            (client.stream, client.socket) = (None, None);
            // Avoids a busy loop while connections are refused.
            engine::sleep(TICK).await;
        }
    }
}

struct Client<'a> {
    thread: &'a Thread,
    stream: Option<Stream>,
    socket: Option<DatagramSocket>,
    /// The number of the next message.
    next: u64,
}

impl Client<'_> {
    /// Sends a message and waits for its echo.
    async fn exchange(&mut self) -> Result<(), Failure> {
        let number = self.next;
        self.next += 1;
        let message = message(number, self.thread.plan.size);
        match self.thread.plan.work {
            EchoTraffic::Messages => self.send_on_stream(&message).await,
            EchoTraffic::Connections => {
                let sent = self.send_on_stream(&message).await;
                self.stream = None;
                sent
            }
            EchoTraffic::Datagrams => self.send_datagram(&message).await,
            EchoTraffic::Sockets => {
                self.socket = None;
                self.send_datagram(&message).await
            }
            EchoTraffic::Throughput => Ok(()), // does not use messages
        }
    }

    async fn send_on_stream(&mut self, message: &Bytes) -> Result<(), Failure> {
        let plan = &self.thread.plan;
        let deadline = Some(Instant::now() + plan.timeout);
        if self.stream.is_none() {
            self.stream = Some(connect(self.thread).await?);
        }
        let Some(stream) = &self.stream else {
            return Err(Failure::Broken);
        };
        stream.push(message.clone());
        stream.start_send();
        self.note_sent(message);
        let mut awaited = &message[..];
        while !awaited.is_empty() {
            let received = stream.recv(deadline).await?;
            if received.is_empty() {
                return Err(Failure::Broken);
            }
            self.note_received(received.len());
            awaited = awaited.strip_prefix(&received[..]).ok_or(Failure::Wrong)?;
        }
        Ok(())
    }

    async fn send_datagram(&mut self, message: &Bytes) -> Result<(), Failure> {
        let plan = &self.thread.plan;
        if self.socket.is_none() {
            self.socket = Some(DatagramSocket::connect(&plan.address)?);
        }
        let Some(socket) = &self.socket else {
            return Err(Failure::Broken);
        };
        let deadline = Instant::now() + plan.timeout;
        socket.push(Datagram::new(message.clone()));
        socket.start_send();
        self.note_sent(message);
        loop {
            let received = match either(socket.recv(), engine::sleep_until(deadline)).await {
                Either::First(received) => received?,
                Either::Second(()) => return Err(Failure::Lost),
            };
            self.note_received(received.bytes.len());
            if received.bytes[..] == message[..] {
                return Ok(());
            }
            // The late echo of an earlier message, which counted as lost, is ignored.
            let number = received.bytes.get(..SIZE_MIN);
            if number == message.get(..SIZE_MIN) || received.bytes.len() != message.len() {
                return Err(Failure::Wrong);
            }
        }
    }

    fn note_sent(&self, message: &Bytes) {
        self.thread.result.borrow_mut().sent += message.len() as u64;
    }

    fn note_received(&self, length: usize) {
        self.thread.result.borrow_mut().received += length as u64;
    }
}

async fn connect(thread: &Thread) -> io::Result<Stream> {
    let plan = &thread.plan;
    let deadline = Some(Instant::now() + plan.timeout);
    let stream = net::connect(&plan.address, None, deadline).await?;
    stream.set_nodelay(true);
    stream.set_send_timeout(plan.timeout);
    Ok(stream)
}

/// A message: its number, and filler bytes derived from it.
fn message(number: u64, size: usize) -> Bytes {
    let mut message = number.to_le_bytes().to_vec();
    message.resize(size.max(SIZE_MIN), number as u8);
    message.into()
}

/// Sends bytes as fast as their echoes arrive.
async fn stream_bytes(thread: &Thread) {
    while !thread.is_to_stop() {
        let streamed = stream_on_one(thread).await;
        if streamed.is_ok() || thread.is_over.get() {
            return;
        }
        match streamed {
            Err(Failure::Wrong) => thread.result.borrow_mut().wrong += 1,
            _ => thread.result.borrow_mut().broken += 1,
        }
        engine::sleep(TICK).await;
    }
}

async fn stream_on_one(thread: &Thread) -> Result<(), Failure> {
    let plan = &thread.plan;
    let stream = connect(thread).await?;
    // The pattern has a prime period, so that lost or duplicated pieces are noticed.
    let pattern: Bytes = (0..=250).cycle().take(plan.size + 251).collect();
    let (mut sent, mut received) = (0_u64, 0_u64);
    let mut is_all_sent = false;
    loop {
        while !is_all_sent && sent - received < WINDOW.max(plan.size as u64) {
            if !thread.take_message() {
                is_all_sent = true;
                break;
            }
            let from = (sent % 251) as usize;
            stream.push(pattern.slice(from..from + plan.size));
            sent += plan.size as u64;
            thread.result.borrow_mut().sent += plan.size as u64;
        }
        stream.start_send();
        if received == sent {
            return Ok(());
        }
        let came = stream.recv(Some(Instant::now() + plan.timeout)).await?;
        if thread.is_over.get() {
            return Ok(());
        }
        if came.is_empty() {
            return Err(Failure::Broken);
        }
        for part in came.chunks(plan.size) {
            let from = (received % 251) as usize;
            if pattern.get(from..from + part.len()) != Some(part) {
                return Err(Failure::Wrong);
            }
            received += part.len() as u64;
        }
        let mut result = thread.result.borrow_mut();
        result.received += came.len() as u64;
        result.messages = result.received / plan.size as u64;
    }
}
