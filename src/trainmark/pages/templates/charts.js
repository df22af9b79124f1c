// Draws each figure.chart when it comes into view, in place of the static picture; one without
// such a picture at once, so that it is there on paper.
// Colours are the page's CSS variables, so a change of theme needs no drawing anew; a picture in
// the language or on the tab that is hidden is drawn when it is shown. Where drawing fails, the
// static picture stays. Vega evaluates expressions by its interpreter: no unsafe-eval is needed.
const options = {
  mode: "vega-lite", ast: true, renderer: "svg", actions: false,
  defaultStyle: false, tooltip: { disableDefaultStyle: true },
};

async function draw(figure) {
  const source = figure.querySelector("script.chart-spec");
  const place = figure.querySelector(".drawing");
  if (!source || !place) return;
  const before = [...place.childNodes];
  const made = document.createElement("div");
  made.className = "live";
  made.style.visibility = "hidden";
  made.style.position = before.length ? "absolute" : "static";
  made.style.width = `${place.clientWidth}px`;
  place.append(made);
  try {
    await vegaEmbed(made, JSON.parse(source.textContent), options);
    before.forEach((node) => node.remove());
    made.removeAttribute("style");
    figure.dataset.drawn = "live";
  } catch (error) {
    made.remove();
    figure.dataset.drawn = "static";
    console.warn("chart not drawn:", error);
  }
}

function start() {
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "200px" });
  document.querySelectorAll("figure.chart").forEach((figure) => {
    if (figure.querySelector(".drawing svg")) seen.observe(figure);
    else draw(figure);
  });
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
else start();
