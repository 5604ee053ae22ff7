# What one does here. Every target works from a clean clone.
#
#   make run                serve examples/site on http://127.0.0.1:8080; a build for a look, about four minutes on two cores
#   make release            target/release/tidegate, for use and for measuring; about fifteen minutes on two cores
#   make test               every test; installs the Debian packages they use, where it may
#   make check              format, clippy, rustdoc and the tidy test; changes nothing
#   make bench              tidegate beside nginx, requests per second of server CPU (benches/compare --help)
#   make testssl            what testssl.sh finds of a server with TLS; five minutes, needs the package testssl.sh
#   make ktls               encryption by the kernel, on a machine emulated for it; ten minutes, tests/ktls names what it needs
#   make judge SUITE=DIR    nginx's own test suite, checked out in DIR, beside tests/nginx-suite.passing
#   make storms             10,000 storms of clients and upstreams that fail in every way, by seed: for every night; ten minutes
#   make models             every order of threads in the models of the store (loom); two minutes, most of it building
#   make differential       random configurations and requests to nginx and tidegate, new ones for FOR=3600 seconds
#   make install DESTDIR=   the release's program, its unit, configuration, page and manual, where they belong on Debian
#   make deb                the Debian packages tidegate and tidegate-nginx into target/debian; needs cargo-deb. tests/packages tries them
#   make image            the container image tidegate, by buildah and without a base; needs root, buildah, busybox-static. tests/image tries it
#   make fmt | docs         format the sources | write docs/directives, docs/compatibility.md, docs/shortcuts.md and the table in README.md again

CARGO ?= cargo
BENCH ?= --quick
FOR ?= 3600
# Most tests wait, for timers and for other processes: three at once for each processor.
TEST_THREADS ?= $(shell expr 3 \* $$(nproc))
SEEDS ?= 10000
BINARY ?= target/release/tidegate
# Where Debian's shells look for completions.
BASH = /usr/share/bash-completion/completions
ZSH = /usr/share/zsh/vendor-completions
FISH = /usr/share/fish/vendor_completions.d

.PHONY: run release install deb image test check bench testssl ktls judge storms models differential fmt docs packages

run:
	$(CARGO) build --profile quick --bin tidegate
	mkdir -p target/site
	@echo "serving examples/site on http://127.0.0.1:8080 (logs in target/site)"
	exec target/quick/tidegate -p $(CURDIR)/ -c examples/site/nginx.conf -e target/site/error.log

release:
	$(CARGO) run --quiet --release --package xtask -- release

install:
	@test -x "$(BINARY)" || { echo "no $(BINARY): make release first"; exit 2; }
	install -D -m 755 "$(BINARY)" "$(DESTDIR)/usr/sbin/tidegate"
	install -D -m 644 packaging/tidegate.service "$(DESTDIR)/lib/systemd/system/tidegate.service"
	install -D -m 644 packaging/tidegate.conf "$(DESTDIR)/etc/tidegate/tidegate.conf"
	install -D -m 644 packaging/mime.types "$(DESTDIR)/etc/tidegate/mime.types"
	install -D -m 644 packaging/default.conf "$(DESTDIR)/etc/tidegate/conf.d/default.conf"
	install -D -m 644 packaging/index.html "$(DESTDIR)/usr/share/tidegate/html/index.html"
	install -D -m 644 packaging/tidegate.logrotate "$(DESTDIR)/etc/logrotate.d/tidegate"
	install -D -m 644 packaging/tidegate.8 "$(DESTDIR)/usr/share/man/man8/tidegate.8"
	install -d -m 755 "$(DESTDIR)$(BASH)" "$(DESTDIR)$(ZSH)" "$(DESTDIR)$(FISH)"
	"$(BINARY)" completions bash >"$(DESTDIR)$(BASH)/tidegate"
	"$(BINARY)" completions zsh >"$(DESTDIR)$(ZSH)/_tidegate"
	"$(BINARY)" completions fish >"$(DESTDIR)$(FISH)/tidegate.fish"
	install -d -m 755 "$(DESTDIR)/var/log/tidegate" "$(DESTDIR)/var/lib/tidegate"

deb: release
	mkdir -p target/deb
	ln -sfn tidegate target/deb/nginx
	target/release/tidegate completions bash >target/deb/tidegate.bash
	target/release/tidegate completions zsh >target/deb/_tidegate
	target/release/tidegate completions fish >target/deb/tidegate.fish
	$(CARGO) run --quiet --package xtask -- sbom >target/deb/tidegate.cdx.json
	$(CARGO) deb --no-build --no-strip
	$(CARGO) deb --no-build --no-strip --variant nginx

image: release
	packaging/image/build "$(BINARY)"

test: packages
	RUST_TEST_THREADS=$(TEST_THREADS) $(CARGO) test --workspace --no-fail-fast

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet
	$(CARGO) run --quiet --package xtask -- tidy

bench: release
	benches/compare $(BENCH)

testssl:
	$(CARGO) build --release --bin tidegate
	tests/testssl

ktls:
	$(CARGO) build --bin tidegate
	tests/ktls

judge:
	@test -n "$(SUITE)" || { echo "usage: make judge SUITE=DIR   (a checkout of nginx's test suite)"; exit 2; }
	$(CARGO) build --release --bin tidegate
	$(CARGO) run --quiet --package xtask -- judge "$(SUITE)" $(JUDGE)

storms:
	SEEDS=$(SEEDS) $(CARGO) test --package tidegate-server --test simulation storm

models:
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom $(CARGO) test --package tidegate-store --lib models

differential:
	$(CARGO) build --profile quick --bin tidegate
	TIDEGATE_BINARY=target/quick/tidegate $(CARGO) test --test differential -- --for $(FOR) --keep-going

fmt:
	$(CARGO) fmt --all

docs:
	$(CARGO) test --quiet --test differential -- --docs
	$(CARGO) build --bin tidegate
	$(CARGO) run --quiet --package xtask -- docs

packages:
	tests/install-packages
