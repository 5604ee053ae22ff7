#!/bin/sh
# Makes files of the configuration out of templates with variables of the environment.
set -e
tidegate templates

# Templates for the stream block, which nginx.conf gets where it has none.
suffix=${NGINX_ENVSUBST_STREAM_TEMPLATE_SUFFIX:-.stream-template}
streams=${NGINX_ENVSUBST_STREAM_OUTPUT_DIR:-/etc/nginx/stream-conf.d}
written=$(tidegate templates --suffix "$suffix" --to "$streams")
[ -n "$written" ] || exit 0
echo "$written"
if ! grep -qE '^[[:space:]]*stream[[:space:]]*\{' /etc/nginx/nginx.conf; then
    printf '\nstream {\n    include %s/*.conf;\n}\n' "$streams" >>/etc/nginx/nginx.conf
fi
