#!/bin/sh
# Makes the certificates and revocation lists beside it, with OpenSSL 3. They are kept as they are: run it only to add some.
# What `tests.rs` expects of them is what `openssl verify` says.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
cat > "$work/conf" <<'CONF'
[req]
distinguished_name = name
prompt = no
[name]
CN = nobody
[ca]
default_ca = authority
[authority]
new_certs_dir = .
database = $ENV::WORK/index
serial = $ENV::WORK/serial
default_md = sha256
default_days = 36500
default_crl_days = 36500
policy = any
[any]
commonName = supplied
[authority_end]
basicConstraints = critical,CA:TRUE
subjectKeyIdentifier = hash
[authority_signing]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign
[authority_short]
basicConstraints = critical,CA:TRUE,pathlen:0
[authority_idle]
basicConstraints = critical,CA:TRUE
keyUsage = critical,digitalSignature
[authority_limited]
basicConstraints = critical,CA:TRUE
nameConstraints = critical,permitted;DNS:example.com
[client]
basicConstraints = critical,CA:FALSE
extendedKeyUsage = clientAuth
[server]
basicConstraints = critical,CA:FALSE
extendedKeyUsage = serverAuth
[inside]
subjectAltName = DNS:a.example.com
[outside]
subjectAltName = DNS:a.example.net
[odd]
1.2.3.4 = critical,DER:0500
CONF
export WORK="$work"
echo 1000 > "$work/serial"
: > "$work/index"
echo 'unique_subject = no' > "$work/index.attr"

key() { openssl ecparam -genkey -noout -name prime256v1 -out "$work/$1.key"; }
# own NAME SUBJECT [EXTENSIONS]: signs itself. Without extensions it is of version 1.
own() {
    key "$1"
    openssl req -x509 -new -config "$work/conf" -key "$work/$1.key" -subj "/CN=$2" -days 36500 \
        ${3:+-extensions "$3"} -out "$1.pem"
}
# by ISSUER NAME [EXTENSIONS] [DATES]
by() {
    [ -f "$work/$2.key" ] || key "$2"
    openssl req -new -config "$work/conf" -key "$work/$2.key" -subj "/CN=$2" -out "$work/$2.csr"
    openssl ca -batch -notext -config "$work/conf" -keyfile "$work/$1.key" -cert "$1.pem" -in "$work/$2.csr" \
        -out "$2.pem" ${3:+-extensions "$3"} ${4:-} 2> "$work/log"
    rm -f ./1[0-9A-F][0-9A-F][0-9A-F].pem
}
# list ISSUER NAME [OPTIONS]
list() {
    openssl ca -gencrl -config "$work/conf" -keyfile "$work/$1.key" -cert "$1.pem" -out "$2.crl" ${3:-} 2> "$work/log"
}

own root root authority_end
own mimic root authority_end
by root between authority_signing
by between leaf client
by root direct client
by root for_servers server
by root authority_shown authority_end
by root odd odd
by root expired client "-startdate 20200101000000Z -enddate 20200102000000Z"
by root future client "-startdate 20900101000000Z -enddate 20910101000000Z"
own old_root old_root
by old_root old_leaf
by root old_between
by old_between below_old
own short short authority_short
by short too_deep authority_end
by too_deep below_too_deep client
by root idle authority_idle
by idle below_idle client
own limited limited authority_limited
by limited inside inside
by limited outside outside
# Two that have signed each other; the first has signed itself, too.
own circle_root circle_a authority_end
by circle_root circle_b authority_end
cp "$work/circle_root.key" "$work/circle_a.key"
by circle_b circle_a authority_end
by circle_root in_circle client
list root empty
list between between
list root stale "-crl_lastupdate 20200101000000Z -crl_nextupdate 20200102000000Z"
openssl ca -config "$work/conf" -revoke between.pem -keyfile "$work/root.key" -cert root.pem 2> "$work/log"
list root revoked
