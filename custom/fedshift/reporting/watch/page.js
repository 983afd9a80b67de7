// Asks for the run's snapshot again and again and shows it. All text goes in as text, never as markup.
"use strict";

const SHOWN = 2000, HIDDEN = 15000, PATIENCE = 60000, SILENT = 1800;  // ms between looks and for an answer; s without news
const STATES = {running: "running", finished: "finished", failed: "failed", stopped: "stopped"};
const KINDS = {INFO: "note", WARNING: "warning", ERROR: "error", CRITICAL: "error"};
const at = id => document.getElementById(id);
const bounds = {left: 46, right: 590, top: 12, bottom: 206};

function say(id, text) {
  const element = at(id);
  if (element.textContent !== text) element.textContent = text;
}

function duration(seconds) {
  const total = Math.round(seconds), two = n => String(n).padStart(2, "0");
  if (total < 60) return `${total} s`;
  if (total < 3600) return `${Math.floor(total / 60)} min ${two(total % 60)} s`;
  if (total < 172800) return `${Math.floor(total / 3600)} h ${two(Math.floor(total % 3600 / 60))} min`;
  return `${Math.floor(total / 86400)} days ${Math.floor(total % 86400 / 3600)} h`;
}

const number = value => value === null || value === undefined ? "–" : value.toFixed(4);
const listed = names => names.length > 8 ? `${names.slice(0, 8).join(", ")} and ${names.length - 8} more` : names.join(", ");

function cell(tag, text, kind, word) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  if (word) {
    const marked = document.createElement("span");
    marked.className = `word ${word}`;
    marked.textContent = text;
    made.append(marked);
  } else made.textContent = text;
  if (tag === "th") made.scope = "row";
  return made;
}

function row(...cells) {
  const made = document.createElement("tr");
  made.append(...cells);
  return made;
}

// Rows are made again only when they are others: a person may be reading or selecting them.
const drawn = new Map();
function fill(id, content, make) {
  const key = JSON.stringify(content);
  if (drawn.get(id) === key) return;
  drawn.set(id, key);
  at(id).replaceChildren(...content.map(make));
}

function place(progress) {
  if (!progress.rounds && progress.step === "evaluation") return "Finished models are scored";
  if (progress.step === "statistics") return `Statistics, before round 1 of ${progress.rounds}`;
  if (progress.step === "evaluation") return `Last evaluation, after ${progress.rounds} rounds`;
  return `Round ${progress.round} of ${progress.rounds}`;
}

function siteRows(progress) {
  const sites = [...new Set([...progress.sites, ...Object.keys(progress.site_scores)])];
  const running = progress.state === "running", entered = new Set(progress.sites_in);
  return sites.map(site => {
    let word = "awaited", more = "";
    if (progress.rejected[site] !== undefined) [word, more] = ["left out", progress.rejected[site]];
    else if (entered.has(site)) word = "in";
    else if (!progress.sites.includes(site)) word = "not asked";
    else if (!running) word = "no answer";
    else if (progress.absent.includes(site)) more = "no answer in the round before";
    return [site, word, more, number(progress.site_scores[site]), number(progress.best_site_scores[site])];
  });
}

function siteRow([site, word, more, latest, best]) {
  const styles = {"in": "in", "left out": "out", "awaited": "awaited", "no answer": "out", "not asked": "awaited"};
  const now = cell("td", word, "", styles[word]);
  if (more) {
    const small = document.createElement("small");
    small.textContent = more;
    now.append(small);
  }
  return row(cell("th", site), now, cell("td", latest, "number"), cell("td", best, "number"));
}

function drawCurve(progress) {
  const points = progress.history.filter(point => point[1] !== null), plot = at("plot");
  say("curve-how", points.length ? `Mean validation ${progress.metric} over the sites; the ring is the best round.`
    : "No round has been scored yet: a round's model is scored at the start of the next.");
  plot.toggleAttribute("hidden", points.length < 1);
  if (points.length < 1) return;
  const values = points.map(point => point[1]);
  let low = Math.min(...values), high = Math.max(...values);
  if (high - low < 1e-9) [low, high] = [low - 0.05, high + 0.05];
  const first = points[0][0], last = points[points.length - 1][0];
  const x = round => bounds.left + 8 + (bounds.right - bounds.left - 16) * (last === first ? 0.5 : (round - first) / (last - first));
  const y = value => bounds.bottom - 6 - (bounds.bottom - bounds.top - 12) * (value - low) / (high - low);
  at("line").setAttribute("points", points.map(([round, value]) => `${x(round).toFixed(1)},${y(value).toFixed(1)}`).join(" "));
  const best = progress.best_score === null || !progress.best_round ? points[points.length - 1] : [progress.best_round, progress.best_score];
  const inside = best[0] >= first && best[0] <= last && best[1] >= low - 1e-6 && best[1] <= high + 0.5;
  at("mark").toggleAttribute("hidden", !inside);
  at("mark").setAttribute("cx", x(best[0]).toFixed(1));
  at("mark").setAttribute("cy", Math.max(y(best[1]), bounds.top).toFixed(1));
  say("top", high.toFixed(2)); say("bottom", low.toFixed(2)); say("first", String(first)); say("last", String(last));
  plot.setAttribute("aria-label", `Mean validation ${progress.metric} from ${values[0].toFixed(3)} in round ${first} to `
    + `${values[values.length - 1].toFixed(3)} in round ${last}; between ${low.toFixed(3)} and ${high.toFixed(3)}`);
}

function trouble(word, text) {
  at("trouble").toggleAttribute("hidden", !text);
  say("trouble-word", word); say("trouble-text", text);
}

function show(snapshot) {
  const progress = snapshot.progress;
  say("where", snapshot.where);
  document.documentElement.classList.toggle("waiting", !progress);
  if (!progress) {
    say("place", snapshot.problem ? "The run cannot be seen just now"
      : snapshot.ended ? `Over: ${snapshot.waits_for}` : `Waiting: ${snapshot.waits_for}`);
    say("state", snapshot.ended ? "over" : "waiting");
    at("state").className = "state";
    at("phantom").toggleAttribute("hidden", true);
    say("job", snapshot.where);
    trouble("NO ACCESS", snapshot.problem);
    document.title = "fedshift watch";
    return;
  }
  const running = progress.state === "running";
  if (snapshot.problem) trouble("NO NEWS", snapshot.problem);
  else if (progress.reason) trouble(STATES[progress.state].toUpperCase(), progress.reason);
  else if (running && snapshot.news_age > Math.max(SILENT, 3 * (progress.seconds_per_round || 0)))
    trouble("SILENT", `No news for ${duration(snapshot.news_age)}. Sites may be slow, or the run's process may have gone.`);
  else trouble("", "");
  say("job", progress.job || "A run");
  at("phantom").toggleAttribute("hidden", !progress.phantom);
  say("state", STATES[progress.state]);
  at("state").className = `state ${STATES[progress.state]}`;
  say("place", running ? place(progress) : progress.state === "finished" ? (progress.rounds ? `Finished after ${progress.rounds} rounds` : "Finished: models were scored")
    : `${progress.state === "failed" ? "Failed" : "Stopped"} in: ${place(progress)}`);
  at("share").value = snapshot.share;
  at("share").textContent = `${Math.round(100 * snapshot.share)} %`;
  say("left", !running ? "–" : progress.seconds_left === null ? (progress.rounds ? "known after round 1" : "not known") : `about ${duration(progress.seconds_left)}`);
  say("n-in", `${progress.sites_in.length} of ${progress.sites.length}`);
  say("latest-label", `Mean validation ${progress.metric}`);
  say("latest", progress.score === null ? "not scored yet" : `${number(progress.score)} (round ${progress.score_round})`);
  say("best", progress.best_score === null ? "not scored yet" : `${number(progress.best_score)} (round ${progress.best_round})`);
  const awaited = progress.sites.filter(site => !progress.sites_in.includes(site) && progress.rejected[site] === undefined);
  say("sites-how", running ? (awaited.length ? `Awaited: ${listed(awaited)}.` : "All sites that were asked have answered.")
    : "As it was at the end.");
  say("head-latest", progress.score_round ? `Round ${progress.score_round}` : "Latest");
  say("head-best", progress.best_round ? `Best (round ${progress.best_round})` : "Best");
  fill("site-rows", siteRows(progress), siteRow);
  drawCurve(progress);
  const refused = progress.refused.slice().reverse();
  say("refused-how", progress.n_refused > refused.length ? `The latest ${refused.length} of ${progress.n_refused}.`
    : progress.n_refused ? "Left out of their round; the run goes on without them." : "None.");
  at("refused-box").toggleAttribute("hidden", !refused.length);
  fill("refused-rows", refused, one => row(cell("td", String(one.round), "number"), cell("th", one.site), cell("td", one.reason, "wide")));
  const lines = progress.log.slice().reverse();
  say("log-how", lines.length ? "The newest lines of the process that coordinates the run, newest first." : "No lines.");
  at("log-box").toggleAttribute("hidden", !lines.length);
  fill("log-rows", lines, line => {
    const kind = KINDS[line.level] || line.level.toLowerCase();
    return row(cell("td", new Date(1000 * line.time).toLocaleTimeString([], {hour12: false})), cell("td", kind, "", kind), cell("td", line.text, "wide"));
  });
  const percent = running ? `${Math.round(100 * snapshot.share)} % · ` : `${STATES[progress.state]} · `;
  document.title = `${progress.phantom ? "PHANTOM: " : ""}${percent}${progress.job || "run"} · fedshift watch`;
}

let timer = 0;
async function look() {
  clearTimeout(timer);
  try {
    const answer = await fetch("snapshot.json", {cache: "no-store", signal: AbortSignal.timeout(PATIENCE)});
    if (!answer.ok) throw new Error(String(answer.status));
    show(await answer.json());
  } catch (error) {
    trouble("NO CONNECTION", "fedshift watch does not answer: start it again, and open the address that it prints.");
  }
  clearTimeout(timer);
  timer = setTimeout(look, document.hidden ? HIDDEN : SHOWN);
}
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
look();
