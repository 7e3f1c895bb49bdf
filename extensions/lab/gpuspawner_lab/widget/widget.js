// The widget in the page. Plain text only goes into it, by textContent: figures come from a notebook file too.

const GIB = 2 ** 30;
const STALE_MS = 5000; // figures come every second; later than this is not live
const WATCH_MS = 10000; // the kernel forgets a view after thirty seconds
const EIGHTHS = { "1/8": 1, "1/4": 2, "1/2": 4, 1: 8 };

function gib(bytes) {
  return typeof bytes === "number" ? `${(bytes / GIB).toFixed(1)} GiB` : "–";
}

function figure(value, unit) {
  return typeof value === "number" ? `${Math.round(value)} ${unit}` : "–";
}

function price(option, currency) {
  return option.price_per_hour ? `${option.price_per_hour} ${currency ?? ""} per hour`.replace("  ", " ") : "price unknown";
}

function when(iso) {
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return "an unknown time";
  const today = at.toDateString() === new Date().toDateString();
  return today ? at.toLocaleTimeString() : at.toLocaleString();
}

function element(tag, className, parent, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

/** Text is set only where it differs: a screen reader would read it again. */
function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
  node.hidden = text === "";
}

/** Where the page's own server takes a resize, if it holds a share: it answers while the kernel is busy. Else null. */
function pageServer() {
  try {
    const config = JSON.parse(document.getElementById("jupyter-config-data").textContent);
    const url = new URL("gpuspawner/api/share", new URL(config.baseUrl, location.href));
    return String(config.gpuspawnerSession) === "true" && url.origin === location.origin ? { url, token: config.token } : null;
  } catch {
    return null; // a saved page, or one of another kind
  }
}

/** Asks the page's server for a share; what came of it, or null where whoever answers there is not our extension. */
async function askServer(server, share, state) {
  const headers = { "Content-Type": "application/json" };
  const xsrf = /(?:^|; )_xsrf=([^;]*)/.exec(document.cookie);
  if (xsrf) headers["X-XSRFToken"] = xsrf[1];
  if (server.token) headers.Authorization = `token ${server.token}`;
  let answer;
  let ok;
  try {
    const response = await fetch(server.url, { method: "PATCH", headers, body: JSON.stringify({ share }), cache: "no-store" });
    ok = response.ok;
    answer = await response.json().catch(() => null);
  } catch {
    return { ok: false, message: "Your Jupyter server cannot be reached." };
  }
  if (ok && answer?.session) {
    const { session, applied_ms: took, notes } = answer;
    const within = typeof took === "number" ? ` in ${took.toFixed(1)} ms` : "";
    const line = `GPU ${state.share} → ${session.share}: ${gib(session.memory_bytes)}${within}, ${price(session, session.currency)}.`;
    return { ok, message: [line, ...(notes ?? [])].join(" ") };
  }
  return typeof answer?.error?.message === "string" ? { ok: false, message: answer.error.message } : null;
}

function render({ model, el }) {
  const id = globalThis.crypto?.randomUUID?.() ?? `v${Math.random().toString(36).slice(2)}`;
  const root = element("section", "gpushare", el);
  root.setAttribute("aria-label", "GPU share");
  const head = element("div", "gpushare-head", root);
  const title = element("strong", "", head);
  const marks = element("span", "gpushare-marks", head);
  const bar = element("div", "gpushare-bar", root);
  bar.setAttribute("role", "img");
  const parts = Array.from({ length: 8 }, () => element("span", "", bar));
  const legend = element("div", "gpushare-legend", root);
  const memory = element("meter", "gpushare-memory", root);
  memory.min = 0;
  memory.setAttribute("aria-label", "Memory used of memory allowed");
  const list = element("dl", "gpushare-figures", root);
  const values = {};
  for (const name of ["Memory", "Utilisation", "Power", "Temperature"]) {
    const cell = element("div", "", list);
    element("dt", "", cell, name);
    values[name] = element("dd", "", cell, "–");
  }
  const form = element("form", "gpushare-form", root);
  const fieldset = element("fieldset", "", form);
  element("legend", "", fieldset, "Change the share; the kernel keeps running");
  const choices = element("div", "gpushare-choices", fieldset);
  const bottom = element("div", "gpushare-apply", form);
  const button = element("button", "", bottom, "Resize");
  button.type = "submit";
  const preview = element("span", "gpushare-preview", bottom);
  const result = element("p", "gpushare-result", root);
  result.setAttribute("role", "status");
  const reasons = element("p", "gpushare-reason", root);
  const foot = element("p", "gpushare-foot", root);

  let heard = -Infinity; // when the kernel last sent figures to this page
  let chosen = null;
  let sent = null; // asked for, and not yet answered by the server or taken up by the kernel
  let waits = false; // it is the kernel's turn, which may be busy
  let drawn = "";

  const live = () => performance.now() - heard < STALE_MS;

  function drawBar(state) {
    const own = state.eighths;
    const known = typeof own === "number" && own >= 1 && own <= 8;
    bar.hidden = legend.hidden = !known;
    if (!known) return;
    const free = state.free_eighths;
    const wanted = chosen === null ? own : EIGHTHS[chosen];
    parts.forEach((part, index) => {
      let kind = index < own ? "own" : typeof free !== "number" ? "rest" : index < own + free ? "free" : "others";
      if (index >= own && index < wanted) kind += " grow";
      if (index < own && index >= wanted) kind += " shrink";
      part.className = kind;
    });
    const words = [`yours ${own}/8`];
    if (typeof free === "number") words.push(`free ${free}/8`, `others ${Math.max(0, 8 - own - free)}/8`);
    say(legend, words.join(" · "));
    bar.setAttribute("aria-label", `The card in eighths: ${words.join(", ")}`);
  }

  function drawChoices(state) {
    const options = state.resizable && Array.isArray(state.options) ? state.options : [];
    form.hidden = options.length === 0;
    const now = JSON.stringify(options);
    if (now === drawn) return;
    drawn = now;
    const focused = choices.contains(document.activeElement) ? document.activeElement.value : null;
    choices.replaceChildren();
    if (!options.some((option) => option.share === chosen && option.available)) chosen = null;
    for (const option of options) {
      const label = element("label", option.available ? "" : "taken", choices);
      const input = element("input", "", label);
      input.type = "radio";
      input.name = `gpushare-${id}`;
      input.value = option.share;
      input.disabled = !option.available;
      input.checked = chosen === null ? Boolean(option.current) : option.share === chosen;
      input.addEventListener("change", () => {
        chosen = option.current ? null : option.share;
        draw();
      });
      element("b", "", label, option.share === "1" ? "whole" : option.share);
      element("span", "", label, gib(option.memory_bytes));
      element("span", "", label, price(option, state.currency));
      if (!option.available && option.reason) element("small", "", label, option.reason);
      if (option.share === focused) input.focus();
    }
  }

  function drawApply(state) {
    const asked = model.get("asked") || sent;
    fieldset.disabled = !live() || Boolean(asked);
    const option = (state.options ?? []).find((each) => each.share === chosen);
    button.disabled = fieldset.disabled || !option;
    let text = "";
    if (asked) text = waits && !model.get("asked") ? `Asked for ${asked}; the kernel answers when it is not busy.` : `Asking for ${asked} …`;
    else if (option) {
      text = `${state.share} → ${option.share}: ${gib(option.memory_bytes)}, ${price(option, state.currency)}`;
      const excess = state.memory_used_bytes - option.memory_bytes;
      if (typeof state.memory_used_bytes === "number" && excess > 0) text += `; ${gib(excess)} must be freed first`;
    }
    say(preview, text);
  }

  function draw() {
    const state = model.get("figures") ?? {};
    say(title, String(state.title ?? "GPU share"));
    const labels = [state.simulated ? "simulated" : null, state.grade && state.share !== "none" ? `limits: ${state.grade}` : null];
    say(marks, labels.filter(Boolean).join(" · "));
    const cardless = state.share === "none";
    drawBar(state);
    const used = state.memory_used_bytes;
    const allowed = state.memory_allowed_bytes;
    memory.hidden = typeof used !== "number" || !(allowed > 0);
    if (!memory.hidden) {
      memory.max = allowed;
      memory.high = allowed * 0.9;
      memory.value = Math.min(used, allowed);
    }
    list.hidden = cardless || !state.available && typeof used !== "number";
    say(values.Memory, `${gib(used)} of ${gib(allowed)}`);
    say(values.Utilisation, figure(state.utilization_percent, "%"));
    say(values.Power, figure(state.power_watts, "W"));
    say(values.Temperature, figure(state.temperature_celsius, "°C"));
    drawChoices(state);
    drawApply(state);
    const notices = Array.isArray(state.notices) ? state.notices : [];
    say(reasons, [...notices, state.reason, state.service_reason].filter(Boolean).join(" "));
    drawFoot(state);
  }

  function drawFoot(state) {
    const now = live();
    root.classList.toggle("stale", !now);
    say(foot, now ? `Live · ${when(state.at)}` : `Not live. Last figures from ${when(state.at)}.`);
  }

  function drawResult(came) {
    sent = null;
    waits = false;
    chosen = null;
    drawn = "";
    result.classList.toggle("refused", came.ok === false);
    say(result, String(came.message ?? ""));
    draw();
  }

  const onResult = () => drawResult(model.get("result") ?? {});

  function onFigures() {
    heard = performance.now();
    draw();
  }

  function onAsked() {
    if (model.get("asked")) sent = null;
    draw();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (chosen === null || button.disabled) return;
    sent = chosen;
    say(result, "");
    void ask(chosen);
    draw();
  });

  async function ask(share) {
    const server = pageServer();
    const came = server && (await askServer(server, share, model.get("figures") ?? {}));
    if (came) {
      drawResult(came);
      return;
    }
    waits = true;
    model.send({ do: "resize", share });
    drawApply(model.get("figures") ?? {});
  }

  let seen = false;
  const watch = () => {
    if (seen && !document.hidden) model.send({ do: "watch", view: id });
  };
  const look = () => {
    if (document.hidden || !seen) model.send({ do: "unwatch", view: id });
    else watch();
  };
  const observer = new IntersectionObserver((entries) => {
    seen = entries[entries.length - 1].isIntersecting;
    look();
  });
  observer.observe(root);
  document.addEventListener("visibilitychange", look);
  const watching = setInterval(watch, WATCH_MS);
  const ageing = setInterval(() => {
    drawApply(model.get("figures") ?? {});
    drawFoot(model.get("figures") ?? {});
  }, 1000);

  model.on("change:figures", onFigures);
  model.on("change:asked", onAsked);
  model.on("change:result", onResult);
  draw();

  return () => {
    observer.disconnect();
    document.removeEventListener("visibilitychange", look);
    clearInterval(watching);
    clearInterval(ageing);
    model.off("change:figures", onFigures);
    model.off("change:asked", onAsked);
    model.off("change:result", onResult);
    model.send({ do: "unwatch", view: id });
  };
}

export default { render };
