(() => {
  "use strict";
  // Looks up what is free in the background: this page again, by the same sign-in. Stops while the tab is hidden.
  const form = document.getElementById("gpu-form");
  const fresh = document.getElementById("gpu-fresh");
  const freshText = document.getElementById("gpu-fresh-text");
  const sum = document.getElementById("gpu-sum");
  const several = document.getElementById("gpu-several");
  const every = Number(fresh.dataset.seconds) * 1000;
  let last = new Date();
  let timer = null;
  let looking = null;
  let over = false;

  const clock = (date) => date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const radios = () => [...form.querySelectorAll('input[name="share"]')];
  const words = (radio) => {
    const part = (what) => (document.getElementById(radio.id + "-" + what) || {}).textContent || "";
    return { size: part("size").trim(), facts: part("facts").trim().replace(/\s{2,}/g, " "), note: part("note").trim() };
  };

  const together = (amount) => amount.replaceAll(" ", "\u00a0");

  function summarise() {
    const chosen = radios().find((radio) => radio.checked);
    let text = "";
    let taken = false;
    let waits = false;
    if (several && several.value) {
      text = several.selectedOptions[0].textContent.trim();
      taken = several.selectedOptions[0].disabled;
    } else if (chosen && chosen.value === "none") {
      text = "No card";
    } else if (chosen) {
      const said = words(chosen);
      waits = chosen.dataset.waits !== undefined;
      taken = !waits && chosen.closest(".gpu-card").classList.contains("taken");
      const [memory, price] = [...document.getElementById(chosen.id + "-facts").children].map((each) => each.textContent);
      text = taken ? said.size + " is taken. " + said.note : [said.size, memory, price].map(together).join(" · ");
    }
    const environment = form.querySelector('input[name="environment"]:checked');
    for (const each of form.querySelectorAll(".gpu-options")) {
      each.hidden = environment !== null && each.dataset.environment !== environment.value;
    }
    if (text && environment && !taken) text += " · " + document.getElementById(environment.id + "-title").textContent;
    sum.textContent = text ? (taken ? text + " Your choice is kept; choose another or wait." : (waits ? "You wait for: " : "You start: ") + text) : "";
    sum.classList.toggle("taken", taken);
  }

  function tell(state, text) {
    fresh.classList.toggle("live", state === "live");
    fresh.classList.toggle("stale", state === "stale");
    if (freshText.textContent !== text) freshText.textContent = text;
  }

  function takeOver(page) {
    const now = page.getElementById("gpu-shares");
    if (!now) throw new Error("no shares");
    const values = (doc) => [...doc.querySelectorAll('input[name="share"]')].map((radio) => radio.value).join(" ");
    if (values(now) !== values(form)) {
      tell("stale", "What is offered here has changed.");
      over = true;
      return;
    }
    for (const radio of radios()) {
      const other = now.querySelector("#" + CSS.escape(radio.id));
      // what was chosen stays chosen, and can be tried; the server has the last word
      radio.disabled = other.disabled && !radio.checked;
      radio.toggleAttribute("data-waits", other.hasAttribute("data-waits"));
      const note = document.getElementById(radio.id + "-note");
      if (!note) continue;
      const said = page.getElementById(radio.id + "-note").textContent;
      if (note.textContent !== said) note.textContent = said;
      radio.closest(".gpu-card").classList.toggle("taken", other.closest(".gpu-card").classList.contains("taken"));
    }
    for (const id of ["gpu-several", "gpu-card"]) {
      const list = document.getElementById(id);
      const other = page.getElementById(id);
      if (!list || !other || list.options.length !== other.options.length || list === document.activeElement) continue;
      [...list.options].forEach((option, at) => {
        option.textContent = other.options[at].textContent;
        option.disabled = other.options[at].disabled && !option.selected;
      });
    }
    const full = document.getElementById("gpu-full");
    const fullNow = page.getElementById("gpu-full");
    if (full && !fullNow) full.remove();
    if (!full && fullNow) form.insertBefore(document.importNode(fullNow, true), document.getElementById("gpu-shares"));
    last = new Date();
    tell("live", "What is free is kept up to date.");
    summarise();
  }

  async function look() {
    const stop = new AbortController();
    looking = stop;
    const patience = setTimeout(() => stop.abort(), 10000);
    try {
      const answer = await fetch(location.pathname, { signal: stop.signal, cache: "no-store", credentials: "same-origin" });
      if (answer.redirected && new URL(answer.url).pathname !== location.pathname) {
        over = true;
        const login = answer.url.includes("/hub/login");
        tell("stale", login ? "You have been signed out." : "This server has been started already, perhaps in another tab.");
        return;
      }
      if (!answer.ok) throw new Error("status " + answer.status);
      takeOver(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } catch (error) {
      if (looking === stop) tell("stale", "Cannot look up what is free. This is how it was at " + clock(last) + "; trying again.");
    } finally {
      clearTimeout(patience);
      if (looking === stop) looking = null;
    }
  }

  function plan(after) {
    clearTimeout(timer);
    if (over || document.hidden) return;
    timer = setTimeout(async () => {
      await look();
      plan(every);
    }, after);
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      clearTimeout(timer);
      if (looking) {
        const stop = looking;
        looking = null;
        stop.abort();
      }
    } else {
      plan(0);
    }
  });
  form.addEventListener("change", (event) => {
    // the newest of the two says what is started
    if (event.target.name === "share" && several) several.value = "";
    if (event.target === several && several.value) radios().forEach((radio) => { radio.required = false; });
    summarise();
  });
  const whole = form.closest("form");
  if (whole) {
    let sent = false;
    whole.addEventListener("submit", (event) => {
      if (sent) event.preventDefault();
      sent = true;
      over = true;
      clearTimeout(timer);
    });
    window.addEventListener("pageshow", () => { sent = false; });
  }
  summarise();
  plan(every);
})();
