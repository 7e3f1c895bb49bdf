(() => {
  "use strict";
  const list = document.getElementById("gpu-steps");
  const status = document.getElementById("gpu-status");
  const cancel = document.getElementById("gpu-cancel");
  const began = Date.now() - Number(list.dataset.seconds) * 1000;
  const items = [...list.children];
  let cancelling = false;
  let over = false;

  const show = (seconds) => seconds.toFixed(1) + " s";
  function step(event) {
    const at = items.findIndex((item) => item.dataset.part === event.part);
    if (at < 0) return;
    items.forEach((item, n) => {
      if (n === at) return;
      item.dataset.state = n < at ? "done" : "later";
    });
    const item = items[at];
    item.dataset.state = "now";
    if (!cancelling) status.textContent = event.waiting ? "Waiting for your turn." : "Starting…";
    item.querySelector(".gpu-said").textContent = event.message;
    item.querySelector("time").textContent = show(event.seconds);
    document.getElementById("gpu-state-" + event.part).textContent = "under way";
    items.slice(0, at).forEach((done) => { done.querySelector(".visually-hidden").textContent = "done"; });
  }
  const source = new EventSource(list.dataset.progress);
  source.onmessage = (message) => {
    const event = JSON.parse(message.data);
    if (event.part) step(event);
    if (!event.ready && !event.failed) return;
    over = true;
    source.close();
    if (cancelling) return;  // JupyterHub calls a cancelled start ready
    if (event.ready) {
      items.forEach((item) => { item.dataset.state = "done"; });
      status.textContent = "Ready. Opening your server.";
    }
    location.reload();  // which leads to the server, or says what went wrong
  };
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED && !cancelling) setTimeout(() => location.reload(), 2000);
  };
  setInterval(() => {
    document.getElementById("gpu-elapsed").textContent = show((Date.now() - began) / 1000);
  }, 500);

  cancel.hidden = false;
  cancel.addEventListener("click", async () => {
    cancelling = true;
    cancel.disabled = true;
    status.textContent = "Cancelling…";
    try {
      const answer = await fetch(cancel.dataset.url, { method: "DELETE", headers: { "X-XSRFToken": window.jhdata.xsrf_token } });
      if (!answer.ok) throw new Error((await answer.json()).message || "status " + answer.status);
      source.close();
      // wait until nothing is left, so that the form can be used at once
      for (let n = 0; n < 60; n++) {
        const form = await fetch(cancel.dataset.form, { cache: "no-store" });
        if (!form.redirected) break;
        await new Promise((done) => setTimeout(done, 500));
      }
      location.replace(cancel.dataset.form + "?_cancelled=1");
    } catch (error) {
      cancelling = false;
      cancel.disabled = false;
      status.textContent = "It could not be cancelled: " + error.message;
      if (over) setTimeout(() => location.reload(), 3000);
    }
  });
})();
