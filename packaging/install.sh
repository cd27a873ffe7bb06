#!/bin/sh
# Installs the newest release of stonechat, or removes it.
set -eu

usage() {
    cat <<'END'
Installs the newest release of stonechat: the program, completions and man pages.

Usage: install.sh [--uninstall | --help]

  --uninstall         remove what was installed; models and settings stay
  --help              print this

Variables:
  PREFIX              where to install, by default ~/.local
  STONECHAT_RELEASE   folder of the archives: an address or file:///path
END
}

release=${STONECHAT_RELEASE:-https://github.com/stonechat/stonechat/releases/latest/download}

fail() {
    echo "error: $1" >&2
    exit 1
}

uninstall() {
    [ -e "$prefix/bin/stonechat" ] || fail "stonechat is not installed in $prefix/bin"
    rm -f "$prefix/bin/stonechat" "$prefix/share/man/man1/stonechat.1" "$prefix/share/man/man1/stonechat-"*.1 \
        "$prefix/share/bash-completion/completions/stonechat" "$prefix/share/zsh/site-functions/_stonechat" \
        "$prefix/share/fish/vendor_completions.d/stonechat.fish"
    echo "removed stonechat from $prefix"
}

[ $# -le 1 ] || { usage >&2; exit 2; }
case "${1:-}" in
"") ;;
-h | --help)
    usage
    exit
    ;;
--uninstall | uninstall)
    prefix=${PREFIX:-$HOME/.local}
    uninstall
    exit
    ;;
*)
    usage >&2
    exit 2
    ;;
esac
prefix=${PREFIX:-$HOME/.local}

case "$(uname -s)" in
Linux) os=unknown-linux-gnu ;;
Darwin) os=apple-darwin ;;
*) fail "no archive for $(uname -s): expected Linux or macOS; on Windows, take the .zip of the release" ;;
esac
case "$(uname -m)" in
x86_64 | amd64) arch=x86_64 ;;
arm64 | aarch64) arch=aarch64 ;;
*) fail "no archive for $(uname -m): expected x86_64 or arm64" ;;
esac
archive=stonechat-$arch-$os.tar.gz

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for file in "$archive" "$archive.sha256"; do
    curl --fail --silent --show-error --location --output "$file" "$release/$file" ||
        fail "cannot download $release/$file"
done
if command -v sha256sum >/dev/null; then
    sha256sum --check --status "$archive.sha256" || fail "$archive was damaged on its way: run this again"
else
    shasum -a 256 --check --status "$archive.sha256" || fail "$archive was damaged on its way: run this again"
fi
tar -xzf "$archive"
cd stonechat-*/

mkdir -p "$prefix/bin" "$prefix/share/man/man1" "$prefix/share/bash-completion/completions" \
    "$prefix/share/zsh/site-functions" "$prefix/share/fish/vendor_completions.d"
# A running program keeps its file.
cp stonechat "$prefix/bin/.stonechat.new"
mv "$prefix/bin/.stonechat.new" "$prefix/bin/stonechat"
cp man/*.1 "$prefix/share/man/man1/"
cp completions/stonechat.bash "$prefix/share/bash-completion/completions/stonechat"
cp completions/_stonechat "$prefix/share/zsh/site-functions/"
cp completions/stonechat.fish "$prefix/share/fish/vendor_completions.d/"

echo "installed $("$prefix/bin/stonechat" --version) in $prefix/bin"
case ":$PATH:" in
*":$prefix/bin:"*) ;;
*) echo "add it to your PATH: export PATH=\"$prefix/bin:\$PATH\"" ;;
esac
