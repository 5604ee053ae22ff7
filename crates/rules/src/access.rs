//! `allow` and `deny`: access by the client's address. The first rule that matches decides.
//!
//! <https://nginx.org/en/docs/http/ngx_http_access_module.html>. The protocol calls
//! [`Access::denies`] and refuses the client.

use std::net::IpAddr;

use conf::{Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting};
use engine::net::Address;
use framework::compile::{Compiler, Feature};
use framework::network::{Cidr, stray_bits};

/// `allow` and `deny`, in the order of the file.
pub static ALLOW: Setting<Vec<Rule>> = Setting::new(
    "allow",
    &["address | CIDR | unix: | all"],
    rules,
)
.also(&["deny"])
.contexts(
    Contexts::HTTP
        .or(Contexts::SERVER)
        .or(Contexts::LOCATION)
        .or(Contexts::LIMIT_EXCEPT)
        .or(Contexts::STREAM)
        .or(Contexts::STREAM_SERVER)
        .or(Contexts::MEMCACHED)
        .or(Contexts::MEMCACHED_SERVER),
)
.inherit(Inherit::List)
.manual(
    "Allows or denies access to the address or network. Rules are checked in order, the first \
         that fits decides; where none fits access is allowed. A scope that writes any of the two \
         directives inherits none from above.",
);

/// The clients that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Every client, over any socket.
    All,
    /// Clients of a Unix socket.
    Unix,
    /// Clients whose address lies in the network.
    Cidr(Cidr),
}

/// One `allow` or `deny`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The clients that the rule matches.
    pub network: Network,
    /// Whether the rule denies access.
    pub deny: bool,
}

/// The rules of a scope.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Access {
    rules: Box<[Rule]>,
    /// Whether any rule applies to IPv4 addresses. If so, IPv4-mapped IPv6 addresses are matched as
    /// IPv4 addresses, otherwise as IPv6 addresses.
    has_ipv4: bool,
}

impl Feature for Access {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&ALLOW];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Access, Fault> {
        Ok(Access::new(scope.written(&ALLOW)?.unwrap_or_default()))
    }
}

impl Access {
    fn new(rules: Vec<Rule>) -> Access {
        let has_ipv4 = rules
            .iter()
            .any(|rule| matches!(rule.network, Network::All | Network::Cidr(Cidr::V4 { .. })));
        Access {
            rules: rules.into(),
            has_ipv4,
        }
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether clients that match no other rule are denied, for configuration checks. `None`
    /// without a rule for `all`. False if a rule before it allows a whole address family.
    pub fn denies_by_default(&self) -> Option<bool> {
        let of_all = |rule: &&Rule| match rule.network {
            Network::All => true,
            Network::Unix => false,
            Network::Cidr(Cidr::V4 { bits, .. } | Cidr::V6 { bits, .. }) => bits == 0,
        };
        let mut of_all = self.rules.iter().filter(of_all);
        let is_let_in = of_all
            .clone()
            .take_while(|rule| rule.network != Network::All);
        let is_let_in = is_let_in.into_iter().any(|rule| !rule.deny);
        let denies = of_all.find(|rule| rule.network == Network::All)?.deny;
        Some(denies && !is_let_in)
    }

    /// Whether the first rule that matches an address denies access; `None` if no rule matches.
    pub fn denies(&self, address: &Address) -> Option<bool> {
        let address = match address {
            Address::Inet(socket) => Some(match socket.ip() {
                IpAddr::V6(ip) if self.has_ipv4 => ip.to_canonical(),
                ip => ip,
            }),
            Address::Unix(_) => None,
        };
        let fits = |rule: &&Rule| match (rule.network, address) {
            (Network::All, _) | (Network::Unix, None) => true,
            (Network::Cidr(cidr), Some(address)) => cidr.contains(address),
            _ => false,
        };
        self.rules.iter().find(fits).map(|rule| rule.deny)
    }
}

fn rules(setter: &Setter<'_>) -> Result<Vec<Rule>, Fault> {
    setter
        .lines()
        .iter()
        .map(|line| {
            let word = line.argument(0);
            let network = match &*word.bytes {
                b"all" => Network::All,
                b"unix:" => Network::Unix,
                text => {
                    let (cidr, has_stray_bits) =
                        Cidr::parse(text).ok_or_else(|| Fault::invalid_parameter(word))?;
                    if has_stray_bits {
                        setter.warn(word, stray_bits(word));
                    }
                    Network::Cidr(cidr)
                }
            };
            Ok(Rule {
                network,
                deny: &*line.name.bytes == b"deny",
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str, deny: bool) -> Rule {
        let network = match text {
            "all" => Network::All,
            "unix:" => Network::Unix,
            text => Network::Cidr(Cidr::parse(text.as_bytes()).unwrap().0),
        };
        Rule { network, deny }
    }

    fn inet(text: &str) -> Address {
        Address::Inet((text.parse::<IpAddr>().unwrap(), 80).into())
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let access = Access::new(vec![
            rule("192.168.1.1", true),
            rule("192.168.1.0/24", false),
            rule("2001:db8::/32", false),
            rule("all", true),
        ]);
        assert_eq!(access.denies(&inet("192.168.1.1")), Some(true));
        assert_eq!(access.denies(&inet("192.168.1.2")), Some(false));
        assert_eq!(access.denies(&inet("::ffff:192.168.1.2")), Some(false));
        assert_eq!(access.denies(&inet("2001:db8::1")), Some(false));
        assert_eq!(access.denies(&inet("::1")), Some(true));
        assert_eq!(access.denies(&Address::Unix("/x".into())), Some(true));
    }

    #[test]
    fn families_without_rules_are_not_judged() {
        let access = Access::new(vec![rule("::ffff:0:0/96", true)]);
        assert_eq!(access.denies(&inet("127.0.0.1")), None);
        assert_eq!(access.denies(&inet("::ffff:127.0.0.1")), Some(true));
        assert_eq!(access.denies(&Address::Unix("/x".into())), None);
        let access = Access::new(vec![rule("10.0.0.0/8", true)]);
        assert_eq!(access.denies(&inet("::ffff:10.1.1.1")), Some(true));
    }
}
