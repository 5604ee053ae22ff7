//! A name server that says what a test tells it to.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

/// A name server on a port of its own, until the test program ends.
pub struct NameServer {
    /// Its port at 127.0.0.1.
    pub port: u16,
    answers: Arc<Mutex<DnsAnswers>>,
}

/// What is answered. Records hold for a second.
#[derive(Clone, Default)]
pub struct DnsAnswers {
    /// Of A the last bytes of addresses 127.0.0.x.
    pub addresses: Vec<u8>,
    /// The same of single names.
    pub by_name: BTreeMap<String, Vec<u8>>,
    /// Of SRV priority, port and name.
    pub services: Vec<(u16, u16, &'static str)>,
    /// A response code other than 0.
    pub code: u8,
    /// Nothing is answered.
    pub is_silent: bool,
    /// How many questions have come, by name.
    pub asked: BTreeMap<String, usize>,
}

impl NameServer {
    /// One that knows no addresses yet.
    pub fn start() -> NameServer {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let answers = Arc::new(Mutex::new(DnsAnswers::default()));
        let shared = Arc::clone(&answers);
        thread::spawn(move || {
            let mut question = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut question) {
                let answer = shared.lock().unwrap().answer(&question[..length]);
                if let Some(answer) = answer {
                    let _ = socket.send_to(&answer, client);
                }
            }
        });
        NameServer { port, answers }
    }

    /// Has every name stand for these addresses, of which only the last bytes are given.
    pub fn says(&self, addresses: &[u8]) {
        let answers = &mut *self.answers();
        (answers.addresses, answers.code) = (addresses.to_vec(), 0);
        answers.is_silent = false;
    }

    /// What it answers, to be changed.
    pub fn answers(&self) -> MutexGuard<'_, DnsAnswers> {
        self.answers.lock().unwrap()
    }

    /// How many questions about a name have come.
    pub fn asked(&self, name: &str) -> usize {
        self.answers().asked.get(name).copied().unwrap_or(0)
    }
}

impl DnsAnswers {
    fn answer(&mut self, question: &[u8]) -> Option<Vec<u8>> {
        let kind = u16::from_be_bytes([question[question.len() - 4], question[question.len() - 3]]);
        let name = name_of(question);
        *self.asked.entry(name.clone()).or_default() += 1;
        if self.is_silent {
            return None;
        }
        let data: Vec<Vec<u8>> = match kind {
            _ if self.code != 0 => Vec::new(),
            1 => {
                let addresses = self.by_name.get(&name).unwrap_or(&self.addresses).iter();
                addresses.map(|last| vec![127, 0, 0, *last]).collect()
            }
            33 => {
                let services = self.services.iter();
                let data = services.map(|(priority, port, name)| {
                    let mut data = [priority.to_be_bytes(), [0, 1], port.to_be_bytes()].concat();
                    for label in name.split('.') {
                        data.push(label.len() as u8);
                        data.extend_from_slice(label.as_bytes());
                    }
                    data.push(0);
                    data
                });
                data.collect()
            }
            _ => Vec::new(),
        };
        let mut answer = question[..2].to_vec();
        answer.extend_from_slice(&[0x81, 0x80 | self.code, 0, 1]);
        answer.extend_from_slice(&[0, data.len() as u8, 0, 0, 0, 0]);
        answer.extend_from_slice(&question[12..]);
        for data in data {
            answer.extend_from_slice(&[0xc0, 12]);
            answer.extend_from_slice(&kind.to_be_bytes());
            answer.extend_from_slice(&[0, 1, 0, 0, 0, 1]);
            answer.extend_from_slice(&(data.len() as u16).to_be_bytes());
            answer.extend_from_slice(&data);
        }
        Some(answer)
    }
}

/// The name of a question.
fn name_of(question: &[u8]) -> String {
    let mut labels = Vec::new();
    let mut rest = &question[12..];
    while let Some((length, behind)) = rest.split_first().filter(|(length, _)| **length > 0) {
        let (label, behind) = behind.split_at(usize::from(*length));
        labels.push(String::from_utf8_lossy(label).into_owned());
        rest = behind;
    }
    labels.join(".")
}
