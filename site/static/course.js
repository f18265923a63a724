// A link to something inside a closed drop-down opens it.
function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let above = target; above; above = above.parentElement) if (above.tagName === "DETAILS") above.open = true;
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", openTarget);
if (location.hash) openTarget();
