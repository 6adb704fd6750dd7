"use strict";
(() => {
  const root = document.documentElement;
  const style = name => getComputedStyle(root).getPropertyValue(name).trim();
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const charts = () => [...document.querySelectorAll(".chart")];

  // What is black on paper is white at night.
  function recolor(value) {
    if (typeof value === "string") return value === "#000000" && dark() ? "#ecebe8" : value;
    if (Array.isArray(value)) return value;
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, recolor(inner)]));
    return value;
  }

  function layoutOf(box, given) {
    const narrow = box.clientWidth < 520, ink = style("--ink"), soft = style("--soft"), grid = style("--grid");
    const axis = own => ({
      gridcolor: grid, zerolinecolor: soft, linecolor: grid, tickcolor: grid, automargin: true, ...own,
      tickfont: { color: soft, size: narrow ? 11 : 12 },
      title: { ...own.title, font: { color: soft, size: narrow ? 12 : 13 }, standoff: 8 },
    });
    return {
      ...given, xaxis: axis(given.xaxis), yaxis: axis(given.yaxis), height: given.height, autosize: true, showlegend: false,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false,
      font: { family: style("--sans").replaceAll('"', ""), color: ink, size: 13 },
      margin: { l: 8, r: 8, t: 12, b: 8 }, hoverlabel: { bgcolor: style("--card"), bordercolor: soft, font: { color: ink } },
    };
  }

  // How each kind of trace looks, whatever it shows.
  const looks = {
    box: { boxpoints: "all", jitter: 0.5, pointpos: 0, fillcolor: "rgba(128,128,128,0.08)", hoveron: "points" },
    heatmap: { colorscale: "Cividis", xgap: 1, ygap: 1 },
  };
  const intervals = { type: "data", symmetric: false, thickness: 1, width: 3 };

  function draw(box) {
    if (!window.Plotly || box.closest("[hidden]")) return;
    const chart = JSON.parse(box.querySelector("script").textContent);
    let plot = box.querySelector(".plot");
    if (!plot) { plot = document.createElement("div"); plot.className = "plot"; plot.setAttribute("role", "img"); plot.setAttribute("aria-label", box.dataset.label); box.append(plot); }
    const off = box.off || new Set();
    const data = chart.data.map(trace => {
      const made = recolor({ ...looks[trace.type], ...trace });
      if (made.error_y) made.error_y = { ...intervals, ...made.error_y };
      if (made.type === "heatmap") made.colorbar = { ...made.colorbar, tickfont: { color: style("--soft") }, title: { ...made.colorbar.title, font: { color: style("--soft") } } };
      return { ...made, visible: !off.has(trace.name) };
    });
    const layout = layoutOf(box, chart.layout);
    if (box.at !== undefined)
      layout.shapes = [{ type: "line", x0: box.at, x1: box.at, yref: "paper", y0: 0, y1: 1, line: { color: style("--accent"), width: 2, dash: "dot" } }];
    Plotly.react(plot, data, layout, { displayModeBar: false, responsive: true });
    legend(box, chart.data);
  }

  // A legend of buttons: it wraps, and the keyboard reaches it.
  function legend(box, data) {
    const named = data.filter(trace => trace.name && trace.type !== "heatmap" && trace.type !== "box");
    const before = box.querySelector(".legend");
    if (named.length < 2) { before?.remove(); return; }
    box.off = box.off || new Set();
    const focused = before && [...before.children].indexOf(document.activeElement);
    const made = document.createElement("div");
    made.className = "legend";
    for (const trace of named) {
      const button = document.createElement("button"), dot = document.createElement("span");
      button.type = "button";
      dot.className = "dot";
      const color = recolor(trace.line?.color || trace.marker?.color || "#888");
      if (trace.line?.dash === "dash") dot.style.boxShadow = `inset 0 0 0 2px ${color}`; else dot.style.background = color;
      const text = document.createElement("textarea");  // names are escaped for Plotly
      text.innerHTML = trace.name;
      button.append(dot, text.value);
      button.setAttribute("aria-pressed", String(!box.off.has(trace.name)));
      button.onclick = () => { box.off.has(trace.name) ? box.off.delete(trace.name) : box.off.add(trace.name); draw(box); };
      made.append(button);
    }
    before ? before.replaceWith(made) : box.prepend(made);
    if (focused >= 0) made.children[focused]?.focus();
  }

  // Everything that is chosen on the page, so that a new version of it can be given the same.
  const chosen = new Map();

  function sortable(table) {
    const heads = [...table.querySelectorAll("th")];
    const sort = (column, up) => {
      const body = table.tBodies[0], key = row => row.cells[column].dataset.value, number = text => text === "" ? NaN : Number(text);
      const rows = [...body.rows].sort((a, b) => {
        const x = number(key(a)), y = number(key(b));
        const by = Number.isNaN(x) || Number.isNaN(y)
          ? (Number.isNaN(x) && Number.isNaN(y) ? key(a).localeCompare(key(b), "en", { numeric: true }) : Number.isNaN(x) ? 1 : -1) * (Number.isNaN(x) === Number.isNaN(y) || up ? 1 : -1)
          : x - y;
        return up ? by : -by;
      });
      body.append(...rows);
      heads.forEach((head, place) => place === column ? head.setAttribute("aria-sort", up ? "ascending" : "descending") : head.removeAttribute("aria-sort"));
      chosen.set(table.id, [column, up]);
    };
    heads.forEach((head, column) => head.querySelector("button").onclick = () => {
      const first = column === 0;  // names go up first, numbers down
      sort(column, head.hasAttribute("aria-sort") ? head.getAttribute("aria-sort") !== "ascending" : first);
    });
    if (chosen.has(table.id)) sort(...chosen.get(table.id));
  }

  function viewable(figure) {
    const show = view => {
      figure.querySelectorAll(".chart").forEach(box => { box.hidden = box.dataset.view !== view; draw(box); });
      chosen.set(figure.id, view);
    };
    const inputs = [...figure.querySelectorAll(".views input")];
    inputs.forEach(input => input.onchange = () => show(input.value));
    const kept = inputs.find(input => input.value === chosen.get(figure.id));
    if (kept) { kept.checked = true; show(kept.value); }
  }

  function walkable(walks) {
    const select = walks.querySelector("select"), all = [...walks.querySelectorAll(".walk")];
    const slide = walk => {
      const input = walk.querySelector("input"), buttons = [...walk.querySelectorAll(".views button")];
      const stops = [...walk.querySelectorAll(".stop")], places = buttons.map(button => Number(button.value));
      const range = places.at(-1) - places[0], at = Number(input.value);
      const near = places.reduce((best, place, k) => Math.abs(place - at) < Math.abs(places[best] - at) ? k : best, 0);
      const computed = Math.abs(places[near] - at) <= 0.005 * range;  // a hand cannot do better
      const next = Math.max(1, places.findIndex(place => place >= at)), part = (at - places[next - 1]) / (places[next] - places[next - 1]);
      buttons.forEach((button, k) => button.setAttribute("aria-pressed", String(computed && k === near)));
      stops.forEach((stop, k) => stop.hidden = k !== near);
      const readings = stop => [...stop.querySelectorAll("dd")].map(each => Number(each.dataset.value));
      const low = readings(stops[computed ? near : next - 1]), high = readings(stops[computed ? near : next]);
      stops[near].querySelectorAll("dd").forEach((each, k) => {
        const bound = "bound" in each.dataset, value = computed || bound ? high[k] : low[k] + part * (high[k] - low[k]);
        const text = each.dataset.unit === "%" ? value.toFixed(1) + "%" : String(Number(value.toPrecision(4)));
        each.firstChild.textContent = !Number.isFinite(value) ? "none" : (computed ? "" : bound ? "\u2264 " : "\u2248 ") + text;
      });
      const says = computed ? `${buttons[near].textContent}, computed` : `${Number(at.toPrecision(3))}, between ${buttons[next - 1].textContent} and ${buttons[next].textContent}`;
      walk.querySelector("output").textContent = says;
      input.setAttribute("aria-valuetext", says);
      const box = walk.querySelector(".chart");
      if (box) { box.at = computed ? places[near] : at; draw(box); }
      chosen.set(input.id, input.value);
    };
    const choose = () => {
      all.forEach(walk => walk.hidden = walk.dataset.walk !== select.value);
      chosen.set(walks.id, select.value);
      slide(all[Number(select.value)]);
    };
    if (chosen.has(walks.id) && all[Number(chosen.get(walks.id))]) select.value = chosen.get(walks.id);
    select.parentElement.hidden = all.length < 2;
    all.forEach(walk => {
      const input = walk.querySelector("input");
      if (chosen.has(input.id)) input.value = chosen.get(input.id);
      input.oninput = () => slide(walk);
      walk.querySelectorAll(".views button").forEach(button => button.onclick = () => { input.value = button.value; slide(walk); });
    });
    select.onchange = choose;
    choose();
  }

  function copyable(button) {
    button.onclick = async () => {
      const text = button.parentElement.querySelector("code").textContent;
      try { await navigator.clipboard.writeText(text); }
      catch {  // a page from the disk may not
        const area = document.createElement("textarea");
        area.value = text; document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
      }
      button.textContent = "Copied";
      setTimeout(() => button.textContent = "Copy", 1500);
    };
  }

  function enliven(part) {
    part.querySelectorAll("table").forEach(sortable);
    part.querySelectorAll(".figure").forEach(viewable);
    part.querySelectorAll(".walks").forEach(walkable);
    part.querySelectorAll(".copy").forEach(copyable);
    part.querySelectorAll(".chart").forEach(draw);
  }

  function theme() {
    try { if (localStorage.waflTheme) root.dataset.theme = localStorage.waflTheme; } catch { }
    document.getElementById("theme").onclick = () => {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.waflTheme = root.dataset.theme; } catch { }
      charts().forEach(draw);
    };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts().forEach(draw));
  }

  function follow() {
    if (!window.IntersectionObserver) return;
    const links = new Map([...document.querySelectorAll("nav a[href^='#']")].map(link => [link.hash.slice(1), link]));
    const seen = new IntersectionObserver(found => found.forEach(each => {
      if (each.isIntersecting) links.forEach((link, id) => link.classList.toggle("here", id === each.target.id));
    }), { rootMargin: "-10% 0px -75% 0px" });
    document.querySelectorAll("section").forEach(part => seen.observe(part));
  }

  // A live page asks for itself again, and takes over the parts that have changed.
  function live(texts) {
    const pulse = document.getElementById("pulse");
    let tag = null;
    const ask = async () => {
      try {
        const answer = await fetch(location.href, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store", signal: AbortSignal.timeout(15000) });
        if (answer.status === 200) {
          tag = answer.headers.get("ETag");
          const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
          const parts = [...fresh.querySelectorAll("[data-part]")];
          const same = parts.length === texts.size && parts.every(part => texts.has(part.dataset.part));
          if (!same) {
            document.getElementById("main").innerHTML = fresh.getElementById("main").innerHTML;
            document.getElementById("contents").innerHTML = fresh.getElementById("contents").innerHTML;
            texts.clear(); parts.forEach(part => texts.set(part.dataset.part, part.outerHTML));
            enliven(document); follow();
          } else for (const part of parts) {
            if (texts.get(part.dataset.part) === part.outerHTML) continue;
            texts.set(part.dataset.part, part.outerHTML);
            const here = document.querySelector(`[data-part="${part.dataset.part}"]`);
            const off = new Map([...here.querySelectorAll(".chart")].map((box, place) => [place, box.off]));
            here.innerHTML = part.innerHTML;
            here.querySelectorAll(".chart").forEach((box, place) => { box.off = off.get(place); });
            enliven(here);
          }
        }
        pulse.textContent = answer.ok || answer.status === 304 ? "live" : `the server says ${answer.status}`;
      } catch { pulse.textContent = "the server is gone; this is what it last said"; }
      setTimeout(ask, document.hidden ? 10000 : 2000);
    };
    setTimeout(ask, 2000);
  }

  async function plotly() {
    const packed = document.getElementById("plotly");
    if (!packed) return;
    const bytes = Uint8Array.from(atob(packed.textContent), letter => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    packed.remove();
  }

  const isLive = "live" in document.body.dataset;
  const texts = new Map([...document.querySelectorAll("[data-part]")].map(part => [part.dataset.part, part.outerHTML]));
  theme();
  enliven(document);
  follow();
  if (isLive) live(texts);
  plotly().then(() => { charts().forEach(draw); document.body.dataset.drawn = "yes"; });
  addEventListener("beforeprint", () => { document.querySelectorAll("details").forEach(each => each.open = true); });
})();
