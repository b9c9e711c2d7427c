// The status page. One stream of server-sent events brings everything; it is read with fetch(), as
// EventSource cannot send a token. Texts get into the page as text only, never as HTML.

const TOKEN = "haproc-token"; // in sessionStorage: gone with the tab, never in a URL
const SAMPLES_MAX = 180; // as on the server: three minutes
const SILENT_MS = 4000; // events come each second
const AGAIN_MS = 500;
const CHANGES_MAX = 8;
const GOOD = ["READY"];
const BUSY = ["READ_ONLY", "RECOVERING", "COPYING", "STARTING", "DRAINING"];
const SIGNS = { good: "●", busy: "◆", bad: "▲" }; // a state is never told by colour alone

const $ = (selector, within = document) => within.querySelector(selector);
let samples = [];
let announced = "";

// -- making elements ------------------------------------------------------------------------------

function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Show rows in place of others, and keep the keyboard's place; nothing is touched if all is equal. */
function refill(parent, seen, rows) {
  const now = JSON.stringify(seen);
  if (parent.seen === now) return;
  parent.seen = now;
  const key = parent.contains(document.activeElement) && document.activeElement.dataset.key;
  parent.replaceChildren(...rows());
  if (key) $(`[data-key="${CSS.escape(key)}"]`, parent)?.focus();
}

function button(key, text, onclick) {
  const made = make("button", { type: "button", textContent: text, onclick });
  made.dataset.key = key;
  return made;
}

function row(...cells) {
  return make("tr", {}, ...cells.map((each) => make("td", {}, each ?? "")));
}

/** Return an SVG of values over time, whose text says the same. */
function spark(what, values) {
  const known = values.map((each) => each ?? 0);
  const top = Math.max(1, ...known);
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", `0 0 ${SAMPLES_MAX} 32`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${what} in the last three minutes: at most ${number(Math.max(0, ...known))}`);
  const line = document.createElementNS(space, "polyline");
  const left = SAMPLES_MAX - known.length;
  line.setAttribute("points", known.map((each, at) => `${left + at},${(31 - (29 * each) / top).toFixed(1)}`).join(" "));
  const base = document.createElementNS(space, "line");
  for (const [name, value] of Object.entries({ x1: 0, x2: SAMPLES_MAX, y1: 31.5, y2: 31.5 })) base.setAttribute(name, value);
  svg.append(base, line);
  return svg;
}

// -- values as text -------------------------------------------------------------------------------

const number = (value) => (value == null ? "–" : value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 }));
const time = (at) => (at ? new Date(at).toLocaleTimeString("en-GB") : "");
const day = (at) => (Date.now() - new Date(at) > 43_200_000 ? `${new Date(at).toLocaleDateString("en-CA")} ${time(at)}` : time(at));
const seconds = (s) => (s == null ? "–" : s < 1 ? `${Math.round(s * 1000)} ms` : `${number(s)} s`);
const mood = (state) => (GOOD.includes(state) ? "good" : BUSY.includes(state) ? "busy" : "bad");
const signed = (state) => `${SIGNS[mood(state)]} ${state || "NO HEARTBEAT"}`;

// -- the parts of the page ------------------------------------------------------------------------

function showCluster(view, ring) {
  const id = `cluster-${view.name}`;
  let card = document.getElementById(id);
  if (!card) {
    const parts = ["reason", "facts", "lag", "work", "actions"].map((name) => make("p", { className: name }));
    card = make("article", { id }, make("h3", {}, make("a"), make("span")), ...parts);
    $("#clusters").append(card);
  }
  const own = view.name === ring.cluster;
  card.dataset.state = view.state;
  const link = $("a", card);
  const door = ring.doors?.[view.name];
  put(link, view.name + (own ? " (this one)" : ""));
  if (door && !own) link.href = `${door}/ui`;
  else link.removeAttribute("href");
  const state = $("h3 span", card);
  put(state, signed(view.state));
  state.className = mood(view.state);
  put($(".reason", card), (own ? ring.reason : view.reason) || "");
  const sync = view.in_sync ? "✓ in sync" : "✗ not in sync";
  put($(".facts", card), `${sync} · cursor ${number(view.cursor)} · lag ${number(view.lag)} · since ${day(view.since)}`);
  $(".lag", card).replaceChildren(spark(`lag of ${view.name}`, samples.map((each) => each.lag[view.name])));
  const copy = own ? ring.copy : view.copy;
  const left = own && view.state === "RECOVERING" ? ring.recovery : null;
  const work = $(".work", card);
  if (copy) work.replaceChildren(`copies from ${copy.donor}: ${copy.tables_done} of ${copy.tables} tables`, make("progress", { max: copy.bytes || 1, value: copy.bytes_done, ariaLabel: "copy" }));
  else if (left) work.replaceChildren(`replays: ${number(left.remaining)} left, ${number(left.rate_per_s)} a second, about ${seconds(left.seconds_left)}`);
  else work.replaceChildren();
  if (own) refill($(".actions", card), [ring.operator, ring.drained], () => (ring.operator ? ownActions(ring) : []));
}

function ownActions({ cluster, drained }) {
  const drain = drained
    ? button("undrain", "Undrain…", () => act(`Give ${cluster} back to its clients?`, "It serves as soon as it has caught up.", "/ha/v1/undrain", { cluster }))
    : button("drain", "Drain…", () => act(`Drain ${cluster}?`, "It finishes what its clients have under way, and refuses what is new, until it is undrained; clients use the other clusters. It stays a member of the ring and applies its queue. The last cluster that serves refuses this.", "/ha/v1/drain", { cluster, force: false }));
  const rebuild = button("rebuild", "Rebuild…", () => act(`Rebuild ${cluster} from another cluster?`, `All tables, views and functions of ${cluster} will be dropped, and made anew as another cluster has them. Clients use the other clusters meanwhile.`, "/ha/v1/rebuild", { cluster, donor: "" }));
  return [drain, " ", rebuild];
}

function showFigures(ring) {
  const { sample, sessions, jobs } = ring;
  const classes = Object.keys(sample?.requests ?? {});
  const requests = (each) => Object.values(each.requests).reduce((sum, rate) => sum + rate, 0);
  const figures = [
    ["Operations applied here a second", number(sample?.applied), "", samples.map((each) => each.applied)],
    ["Requests answered here a second", number(sample && requests(sample)), classes.map((name) => `${name} ${number(sample.requests[name])}`).join(", "), samples.map(requests)],
    ["Requests failed a second", number(sample?.failed), "", samples.map((each) => each.failed)],
    ["Answered within, last minute", `${seconds(sample?.p50_s)} / ${seconds(sample?.p99_s)}`, "median / 99 of 100"],
    ["In sync", `${ring.in_sync.length} of ${ring.clusters.length}`, `all of them have applied below ${number(ring.high_watermark)}`],
    ["End of the log", number(ring.log_end), ""],
  ];
  if (sessions) figures.push(["Sessions here", number(sessions.here), `${number(sessions.ring)} in the ring, ${number(sessions.adopted)} adopted here`]);
  if (jobs) {
    const states = Object.entries(jobs).filter(([name, count]) => name !== "here" && count);
    figures.push(["Jobs here", number(jobs.here), states.map(([name, count]) => `${number(count)} ${name}`).join(", ") || "none in the ring"]);
  }
  const tiles = figures.map(([name, value, more, values]) => {
    const told = make("dd", {}, value, make("small", {}, more));
    if (values) told.append(spark(name, values));
    return make("div", {}, make("dt", {}, name), told);
  });
  $("#figures").replaceChildren(...tiles);
}

function showOperations(ring) {
  refill($("#operations tbody"), ring.operations ?? [], () =>
    (ring.operations ?? []).map((op) => {
      const from = op.user === undefined ? op.origin : `${op.user} at ${op.origin}`;
      const outcome = make("span", { className: op.outcome === "applied" ? "good" : op.outcome ? "bad" : "busy" });
      outcome.textContent = [op.outcome ?? "… in the queue", op.error].filter(Boolean).join(": ");
      return row(number(op.offset), time(op.at), op.kind, op.class, op.form, from, op.tables?.join(", ") ?? "for operators", outcome, op.ms == null ? "" : seconds(op.ms / 1000));
    }));
  const queue = ring.queue ?? [];
  $("#queue").hidden = !ring.operator;
  // Its age changes each second, and is not shown.
  refill($("#queue tbody"), queue.map((op) => [op.offset, op.position, op.attempts, op.error]), () =>
    queue.map((op) => row(number(op.offset), op.position, op.writes.join(", "), number(op.attempts), op.error, queueActions(ring.cluster, op))));
}

function queueActions(cluster, { offset, position }) {
  const shown = make("span", {}, button(`revoke-${offset}`, "Revoke…", () => actOn(cluster, offset, "revoke")));
  if (["failing", "stuck"].includes(position)) shown.prepend(button(`retry-${offset}`, "Retry…", () => actOn(cluster, offset, "retry")), " ");
  return shown;
}

function showChanges({ changes }) {
  refill($("#changes"), changes, () =>
    changes.slice(-CHANGES_MAX).reverse().map(({ at, cluster, before, after }) => {
      const now = make("span", { className: mood(after) }, signed(after));
      return make("li", {}, make("time", { dateTime: at }, day(at)), ` ${cluster}: ${before || "NO HEARTBEAT"} → `, now);
    }));
  const last = changes.at(-1);
  const news = last ? `${last.cluster} is ${last.after || "without a heartbeat"}` : "";
  if (news !== announced) put($("#news"), (announced = news));
}

function show(ring) {
  if (ring.sample && ring.sample.at > (samples.at(-1)?.at ?? 0)) samples = [...samples, ring.sample].slice(-SAMPLES_MAX);
  document.title = `${ring.ring}: ${ring.clusters.map((each) => `${each.name} ${each.state || "NO HEARTBEAT"}`).join(", ")}`;
  put($("#ring"), ring.ring);
  put($("#cluster"), ring.cluster);
  put($("#version"), ring.version);
  const sign = $("#sign");
  sign.hidden = ring.operator === null;
  put(sign, ring.operator ? "Forget the secret" : "Operator…");
  sign.onclick = () => (ring.operator ? signOut() : signIn("An operator's token (or the ring's secret) shows tables, users and the queue, and lets you act."));
  const names = ring.clusters.map((each) => `cluster-${each.name}`);
  for (const card of [...$("#clusters").children]) if (!names.includes(card.id)) card.remove();
  for (const view of ring.clusters) showCluster(view, ring);
  showFigures(ring);
  showOperations(ring);
  showChanges(ring);
}

// -- questions and actions ------------------------------------------------------------------------

/** Answers the newest question as its dialog was closed. */
let finish = () => {};

/** Ask, and return what was entered (true without an entry), or null. */
function question(title, what, { detail = "", label = "", secret = false, confirm = "Yes, do it" } = {}) {
  const dialog = $("dialog");
  const input = $("input", dialog);
  if (dialog.open) return Promise.resolve(null);
  finish(); // the event of a dialog that was closed a moment ago is still to come
  put($("#question"), title);
  put($("#what"), what);
  put($("#detail"), detail);
  put($("#confirm"), confirm);
  $("#entry").hidden = !label;
  put($("#entry span"), label);
  Object.assign(input, { type: secret ? "password" : "text", value: "", required: false });
  dialog.returnValue = "";
  dialog.showModal();
  // Enter in the field must not be "Cancel", which is the form's first button.
  input.onkeydown = (event) => { if (event.key === "Enter") { event.preventDefault(); dialog.close("yes"); } };
  return new Promise((resolve) => {
    finish = () => {
      resolve(dialog.returnValue === "yes" ? (label ? input.value : true) : null);
      input.value = "";
    };
    dialog.onclose = () => dialog.open || finish();
  });
}

async function ask(path, body) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(TOKEN)}`, "Content-Type": "application/json" };
  const response = await fetch(path, body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers });
  const answer = await response.json();
  if (!response.ok) throw new Error([answer.message, answer.hint].filter(Boolean).join(": "));
  return answer;
}

async function telling(what, work) {
  try {
    const done = await work();
    if (done) put($("#told"), `${what} ${done.done ?? done.status ?? done.state ?? "asked for"}`);
  } catch (error) {
    put($("#told"), `${what} ${error.message}`);
  }
}

const act = (title, what, path, body) => telling(title, async () => (await question(title, what)) && ask(path, body));

function actOn(cluster, offset, verb) {
  const title = `${verb === "retry" ? "Retry" : "Revoke"} the operation at offset ${offset}?`;
  return telling(title, async () => {
    const told = await ask(`/ha/v1/queue/${offset}`);
    const { operation } = told;
    if (!told[verb].allowed) throw new Error(told[verb].text);
    const detail = operation.sql ?? JSON.stringify(operation.rows ?? operation.plan ?? {});
    const label = verb === "revoke" ? "Reason, for the log" : "";
    const reason = await question(title, told[verb].text, { detail, label });
    if (reason === null) return null;
    return ask(`/ha/v1/queue/${offset}/${verb}`, verb === "retry" ? { cluster } : { reason, without: "" });
  });
}

let stop = new AbortController();

async function signIn(what) {
  const token = await question("Which token do you have?", what, { label: "Token (kept in this tab only)", secret: true, confirm: "Use it" });
  if (!token) return;
  sessionStorage.setItem(TOKEN, token.trim());
  stop.abort();
}

function signOut() {
  sessionStorage.removeItem(TOKEN);
  put($("#told"), "");
  stop.abort();
}

// -- the stream -----------------------------------------------------------------------------------

const take = {
  history: (told) => { samples = told.samples; },
  snapshot: (told) => { show(told); live(""); },
};

function live(why) {
  document.body.classList.toggle("stale", Boolean(why));
  put($("#live"), why ? `▲ not live: ${why}` : "● live");
}

async function follow() {
  const token = sessionStorage.getItem(TOKEN);
  stop = new AbortController();
  let patience;
  const alive = () => {
    clearTimeout(patience);
    patience = setTimeout(() => stop.abort(new Error("no event arrived")), SILENT_MS);
  };
  try {
    alive();
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const response = await fetch("/ui/events", { headers, cache: "no-store", signal: stop.signal });
    if (!response.ok) {
      const { message } = await response.json();
      if (response.status === 401 || response.status === 403) {
        sessionStorage.removeItem(TOKEN);
        clearTimeout(patience);
        live(message);
        await signIn(message);
      }
      throw new Error(message);
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      alive();
      const events = (rest + part.value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const [, name, data] = /^event: (\w+)\ndata: (.*)$/s.exec(event);
        if (name === "again") return; // the token is checked at the begin of a stream
        take[name](JSON.parse(data));
      }
    }
    throw new Error("the stream ended");
  } catch (error) {
    live(error.message);
  } finally {
    clearTimeout(patience);
  }
}

for (;;) {
  await follow();
  await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
}
