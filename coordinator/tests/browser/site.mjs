// The browser and what is asked of every page.
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { chromium } from "playwright-core";

if (!process.env.CIPHERHOP_SITE) throw new Error("run: cargo test -p cipherhop-coordinator --test browser");
export const site = JSON.parse(process.env.CIPHERHOP_SITE);
mkdirSync(site.pictures, { recursive: true });

export const chain = (what) => `/chains/${site.chains[what]}`;
/** Every page that people see, by the name of its picture. */
export const PAGES = {
  chains: "/", running: chain("running"), stuck: chain("stuck"), verifying: chain("verifying"), ready: chain("ready"), paused: chain("paused"),
  completed: chain("completed"), cancelled: chain("cancelled"), filtered: `${chain("running")}?hops=2-5&open=1`,
  volunteers: "/volunteers", lend: "/lend", missing: "/nowhere", "no-chain": "/chains/none",
  "bad-filter": `${chain("running")}?hops=25-5`,
};
/** The same of a coordinator without chains and volunteers. */
export const EMPTY = { "empty-chains": `${site.empty}/`, "empty-volunteers": `${site.empty}/volunteers` };
export const PHONE = { width: 360, height: 740 };

/** Takes a step of the site: see site.rs. */
export async function step(name) {
  const answer = await fetch(`${site.control}/${name}`, { method: "POST" });
  if (!answer.ok) throw new Error(`step ${name}: ${answer.status}`);
}

const browser = await chromium.launch({ executablePath: site.browser, args: ["--no-sandbox"] });
export const close = () => browser.close();

/** A page whose console errors, failed loads and exceptions are kept in `page.complaints`. */
export async function open(path, { clock = false, ...options } = {}) {
  const context = await browser.newContext({ baseURL: site.pages, ...options });
  context.setDefaultTimeout(120_000);
  if (clock) await context.clock.install();
  const page = await context.newPage();
  page.complaints = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) page.complaints.push(`${message.text()} ${message.location().url}`);
  });
  page.on("pageerror", (error) => page.complaints.push(String(error)));
  page.on("requestfailed", (request) => page.complaints.push(`${request.url()}: ${request.failure().errorText}`));
  page.answer = await page.goto(path);
  return page;
}

export const picture = (page, name) => page.screenshot({ path: join(site.pictures, `${name}.png`), fullPage: true });

/** Text in the page whose contrast to what is behind it is below 4.5 (WCAG 2.2, 1.4.3), and all that was looked at. */
export function contrast(page) {
  return page.evaluate(() => {
    const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (color) => {
      paint.clearRect(0, 0, 1, 1);
      paint.fillStyle = color;
      paint.fillRect(0, 0, 1, 1);
      return [...paint.getImageData(0, 0, 1, 1).data];
    };
    const light = (color) => {
      const [r, g, b] = color.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
      for (let at = element; at; at = at.parentElement) {
        const color = rgba(getComputedStyle(at).backgroundColor);
        if (color[3] === 255) return color;
      }
      throw new Error("nothing opaque behind the text");
    };
    const found = [];
    const measure = (color, element, text) => {
      const [a, b] = [light(rgba(color)), light(behind(element))];
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      const state = element.closest("[class]")?.className;
      found.push({ text, state: String(state?.baseVal ?? state), ratio });
    };
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const element = texts.currentNode.parentElement;
      if (!texts.currentNode.data.trim() || !element.getClientRects().length) continue;
      const style = getComputedStyle(element);
      measure(element.closest("svg") ? style.fill : style.color, element, texts.currentNode.data.trim().slice(0, 30));
    }
    for (const input of document.querySelectorAll("input[placeholder]")) {
      measure(getComputedStyle(input, "::placeholder").color, input, input.placeholder);
    }
    return found;
  });
}
