// Puts what changed into the page, and copies commands. The server has escaped what comes; a page
// without this script loads itself again.
"use strict";

const waiting = new Map();
const connection = document.getElementById("connection");
const touchable = "a, button, summary, input, textarea";

// What has the focus keeps it: the element in the same place among those that can have it.
function put(id, html) {
  const place = document.getElementById(id);
  if (!place) return;
  const index = [...place.querySelectorAll(touchable)].indexOf(document.activeElement);
  place.innerHTML = html;
  if (index >= 0) place.querySelectorAll(touchable)[index]?.focus();
}

// What someone marks to copy it stays as it is until it is let go.
function isMarked(id) {
  const marked = getSelection();
  const place = document.getElementById(id);
  return place && !marked.isCollapsed && marked.containsNode(place, true);
}

// Elsewhere than on this machine or by HTTPS a browser only lets a page copy what is marked.
async function copy(button) {
  const code = button.parentElement.querySelector("code");
  let isCopied = true;
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    getSelection().selectAllChildren(code);
    isCopied = document.execCommand("copy");
    if (isCopied) getSelection().removeAllRanges();
  }
  button.textContent = isCopied ? "Copied" : "Press Ctrl+C";
}

document.documentElement.classList.add("scripted");
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button.copy");
  if (button) copy(button);
});

function live() {
  const events = new EventSource("/live");
  events.onmessage = (event) => {
    for (const [id, html] of Object.entries(JSON.parse(event.data))) waiting.set(id, html);
    for (const [id, html] of waiting) {
      if (isMarked(id)) continue;
      waiting.delete(id);
      put(id, html);
    }
  };
  events.onopen = () => {
    document.body.classList.remove("stale");
    connection.textContent = " live";
  };
  events.onerror = () => {
    document.body.classList.add("stale");
    connection.textContent = " the console does not answer; trying again";
  };
}

if ("live" in document.body.dataset) live();
