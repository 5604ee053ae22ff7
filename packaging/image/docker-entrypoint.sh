#!/bin/sh
# The first process of a container, with the habits of nginx's image: where the command is the server,
# what lies in /docker-entrypoint.d runs first, in the order of its names.
set -e

say() {
    [ -n "${NGINX_ENTRYPOINT_QUIET_LOGS:-}" ] || echo "$0: $*"
}

case "$1" in
nginx | tidegate)
    # Names come in the order of the locale: numbers first, whatever that is.
    for file in /docker-entrypoint.d/*; do
        case "$file" in
        *.envsh)
            if [ -x "$file" ]; then
                say "sourcing $file"
                . "$file"
            else
                say "ignoring $file, not executable"
            fi
            ;;
        *.sh)
            if [ -x "$file" ]; then
                say "launching $file"
                "$file"
            else
                say "ignoring $file, not executable"
            fi
            ;;
        *) [ ! -e "$file" ] || say "ignoring $file" ;;
        esac
    done
    say "configuration complete; ready for start up"
    ;;
esac
exec "$@"
