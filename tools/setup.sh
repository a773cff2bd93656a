# SPDX-License-Identifier: BSD-3-Clause
# Sourced by tools/quickstart and tools/check: changes to the source folder, and gives them the two steps they share.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

say() {
    printf '\n== %s\n' "$*"
}

missing_packages() {
    local package
    for package in $(awk -v command="$1" '!/^#/ && $0 ~ " " command { print $1 }' tools/packages.txt); do
        # A package that was removed but not purged is known to dpkg, and not installed.
        if [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
            echo "$package"
        fi
    done
}

# install_packages COMMAND installs what COMMAND needs and this machine has not, or says how and stops.
install_packages() {
    local missing as_root=()
    if ! command -v dpkg-query >/dev/null; then
        say "no Debian packages here; see tools/packages.txt for what is needed"
        return
    fi
    missing=$(missing_packages "$1" | tr '\n' ' ')
    [ -n "$missing" ] || return 0
    say "packages missing: $missing"
    if [ "$(id -u)" -ne 0 ]; then
        if ! sudo -n true 2>/dev/null; then
            printf 'May not install them. Please run\n    sudo apt-get install %s\n' "$missing" >&2
            exit 1
        fi
        as_root=(sudo -n)
    fi
    # The package's own Redis service is not needed: tests start private servers.
    if ! { "${as_root[@]}" apt-get update -q &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -q -y --no-install-recommends $missing; }; then
        printf 'Could not install them:\n    apt-get install %s\n' "$missing" >&2
        exit 1
    fi
}

# configure FOLDER [OPTION...] makes the build folder, or configures it again with what is there by now.
configure() {
    local folder=$1
    shift
    if [ -e "$folder/meson-private/coredata.dat" ]; then
        # A folder of another source folder or another Meson cannot be used again.
        meson setup --reconfigure "$folder" "$@" >"$folder/setup.log" 2>&1 ||
            meson setup --wipe "$folder" "$@"
    else
        meson setup "$folder" "$@"
    fi
}
