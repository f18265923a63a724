#!/usr/bin/env bash
# The branch gh-pages holds the released site at its top, and previews of pull requests in preview/NUMBER.
#
#     .github/pages.sh publish SITE .           a release: everything but the previews is replaced
#     .github/pages.sh publish SITE preview/12  the preview of pull request 12 is replaced
#     .github/pages.sh remove preview/12        it is taken away
#
# The branch has one commit, so that old builds do not stay in the repository. If somebody else pushed meanwhile, the push
# is refused (--force-with-lease) and tried again on what they wrote.
set -euo pipefail

what=$1
if [ "$what" = publish ]; then site=$(cd "$2" && pwd) folder=$3; else site='' folder=$2; fi
case $folder in .|preview/[0-9]*) ;; *) echo "pages.sh: not a folder of the site: $folder" >&2; exit 2 ;; esac
[[ $folder != *..* ]] || { echo "pages.sh: not a folder of the site: $folder" >&2; exit 2; }

work=$(mktemp -d)
cleanup() { git worktree remove --force "$work/pages" 2>/dev/null || true; rm -rf "$work"; }
trap cleanup EXIT

once() {        # `if once` switches `set -e` off inside, so each step says itself that it failed
    git worktree remove --force "$work/pages" 2>/dev/null || true
    if git fetch -q --depth 1 origin gh-pages 2>/dev/null; then
        old=$(git rev-parse FETCH_HEAD)
        git worktree add -q --detach "$work/pages" "$old" || return 1
    else
        old=
        git worktree add -q --detach "$work/pages" || return 1
        git -C "$work/pages" rm -rqf --ignore-unmatch .
    fi
    if [ "$folder" = . ]; then
        find "$work/pages" -mindepth 1 -maxdepth 1 ! -name .git ! -name preview -exec rm -rf {} +
    else
        rm -rf "${work:?}/pages/$folder"
    fi
    if [ -n "$site" ]; then
        mkdir -p "$work/pages/$folder" || return 1
        cp -a "$site/." "$work/pages/$folder/" || return 1
    fi
    touch "$work/pages/.nojekyll"
    git -C "$work/pages" add -A -f || return 1
    commit=$(git -C "$work/pages" -c user.name=site -c user.email=site@users.noreply.github.com \
             commit-tree -m "The site" "$(git -C "$work/pages" write-tree)") || return 1
    git push -q --force-with-lease=gh-pages:"$old" origin "$commit:refs/heads/gh-pages"
}

for attempt in 1 2 3; do
    if once; then exit 0; fi
    echo "pages.sh: attempt $attempt was refused" >&2
done
exit 1
