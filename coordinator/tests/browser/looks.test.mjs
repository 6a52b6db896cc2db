// How the pages look: complete, readable, in both colour schemes, on a phone.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { EMPTY, PAGES, PHONE, chain, close, contrast, open, picture, site } from "./site.mjs";

after(close);

const STATUS = { missing: 404, "no-chain": 404, "bad-filter": 400 };
const STATES = { running: ["verified", "running", "blocked"], stuck: ["stuck"], verifying: ["verifying"], ready: ["ready"], cancelled: ["cancelled"] };

for (const [name, path] of Object.entries({ ...PAGES, ...EMPTY })) {
  const status = STATUS[name] ?? 200;
  for (const colorScheme of ["light", "dark"]) {
    test(`${name}, ${colorScheme}: loads without complaint and its text stands out`, async () => {
      const page = await open(path, { colorScheme });
      await picture(page, `${name}-${colorScheme}`);
      assert.equal(page.answer.status(), status);
      assert.equal(await page.locator("h1").count(), 1);
      assert.match(await page.title(), /. · Cipherhop$/);
      const texts = await contrast(page);
      assert.ok(texts.length > 5, "there is text");
      assert.deepEqual(texts.filter((text) => text.ratio < 4.5), []);
      for (const state of STATES[name] ?? []) {
        for (const place of [state, `state ${state}`]) {
          assert.ok(texts.some((text) => text.state === place), `"${place}" was measured`);
        }
      }
      const dark = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      assert.equal(dark === "rgb(21, 24, 27)", colorScheme === "dark", dark);
      assert.deepEqual(page.complaints.filter((text) => status === 200 || !text.includes(String(status))), []);
      await page.context().close();
    });
  }

  test(`${name}, phone: nothing is wider than the screen or cut off`, async () => {
    const page = await open(path, { viewport: PHONE, isMobile: true, hasTouch: true, deviceScaleFactor: 2 });
    await picture(page, `${name}-phone`);
    const [inside, shown] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    assert.equal(shown, PHONE.width, "the page is not zoomed out");
    assert.ok(inside <= PHONE.width, `${inside} px`);
    const cut = await page.evaluate((width) => [...document.querySelectorAll("main *")]
      .filter((element) => !element.closest("svg, thead") && element.getClientRects().length)
      .filter((element) => element.getBoundingClientRect().right > width)
      .map((element) => element.outerHTML.slice(0, 80)), PHONE.width);
    assert.deepEqual(cut, []);
    const broken = await page.evaluate(() => [...document.querySelectorAll(".badge, .state")]
      .filter((element) => element.getClientRects().length > 1).map((element) => element.textContent));
    assert.deepEqual(broken, [], "one line each");
    const bare = await page.locator("td:empty").evaluateAll((all) => all.filter((cell) => cell.getClientRects().length).length);
    assert.equal(bare, 0, "no name stands before nothing");
    await page.context().close();
  });
}

test("on a phone the rows are still rows of a table to a screen reader", async () => {
  const page = await open(chain("running"), { viewport: PHONE });
  const session = await page.context().newCDPSession(page);
  const { nodes } = await session.send("Accessibility.getFullAXTree");
  const table = nodes.find((node) => node.role?.value === "table" && node.name?.value === "Hops");
  const below = (node) => (node.childIds ?? []).map((id) => nodes.find((n) => n.nodeId === id)).flatMap((n) => [n, ...below(n)]);
  const count = (role) => below(table).filter((node) => node.role?.value === role).length;
  assert.equal(count("row"), 29, "28 hops and the heads");
  assert.equal(count("columnheader"), 7);
  assert.ok(count("cell") >= 28 * 3);
  await page.context().close();
});

test("a plot of few hops is large enough to read", async () => {
  const page = await open(chain("running"));
  const { width, height } = await page.locator("svg:not(.time)").boundingBox();
  assert.ok(width > 200 && height > 150, `${width} x ${height}`);
  assert.equal(await page.locator("svg .hop").count(), 4, "each hop has its number");
  const bars = await page.locator("svg:not(.time) rect").evaluateAll((all) => all.map((bar) => bar.getBoundingClientRect().width));
  assert.ok(bars.length === 8 && bars.every((bar) => bar >= 20), String(bars));
  await page.context().close();
});

test("the pages bring their own icon", async () => {
  const page = await open("/");
  const icon = await page.locator("link[rel=icon]").getAttribute("href");
  for (const path of [icon, "/favicon.ico"]) {
    const answer = await fetch(site.pages + path);
    assert.equal(answer.status, 200, path);
    assert.match(answer.headers.get("content-type"), /^image\/svg/);
    // an image that cannot be drawn has no size
    const width = await page.evaluate(async (src) => {
      const image = new Image(32, 32);
      image.src = src;
      await image.decode();
      return image.naturalWidth;
    }, path);
    assert.ok(width > 0, path);
  }
  await page.context().close();
});
