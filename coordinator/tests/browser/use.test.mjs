// What people do on the pages: watch, type, filter, move by keyboard; and what programs ask for.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { EMPTY, PAGES, chain, close, open, picture, site, step } from "./site.mjs";

after(close);

// machines that run tests stand still now and then
const SOON = { timeout: 120_000 };
const hops = (page) => page.getByRole("table", { name: "Hops", exact: true });
const field = (page) => page.getByRole("textbox", { name: "Hops", exact: true });
const connected = (page) => page.locator("#live", { hasText: /^live$/ }).waitFor(SOON);

test("without JavaScript the tables are there and the filter works", async () => {
  const page = await open(chain("running"), { javaScriptEnabled: false });
  assert.equal(await hops(page).locator("tbody tr").count(), 28);
  await field(page).fill("3-4");
  await page.getByRole("button", { name: "Show" }).click();
  assert.equal(await hops(page).locator("tbody tr").count(), 2);
  await page.getByLabel("open ones only").check();
  await page.getByRole("button", { name: "Show" }).click();
  assert.equal(await hops(page).locator("tbody tr").count(), 1);
  await page.getByRole("link", { name: "Volunteers" }).click();
  assert.match(await page.getByRole("table", { name: "Volunteers" }).innerText(), /ada/);
  await page.getByRole("link", { name: "Chains" }).click();
  assert.equal(await page.getByRole("table", { name: "Chains" }).locator("tbody tr").count(), 7);
  await page.context().close();
});

test("a live update leaves alone what is being typed, the focus and the selection", async () => {
  const page = await open(chain("running"));
  await connected(page);
  await field(page).pressSequentially("2-");
  await page.getByLabel("open ones only").check();
  await field(page).focus();
  const before = await page.locator("#hop-4").innerText();
  await step("progress");
  await page.waitForFunction((text) => document.querySelector("#hop-4").innerText !== text, before, SOON);
  assert.match(await page.locator("#hop-4").innerText(), /12\/45/);
  await page.keyboard.type("5");
  assert.equal(await field(page).inputValue(), "2-5");
  assert.ok(await page.getByLabel("open ones only").isChecked());

  const link = page.locator(".strip a").nth(6);
  await link.focus();
  await step("progress");
  await page.locator("#hop-4", { hasText: "13/45" }).waitFor(SOON);
  assert.ok(await link.evaluate((element) => element === document.activeElement), "a link without a name keeps the focus");

  await page.evaluate(() => getSelection().selectAllChildren(document.querySelector("#hop-4 td")));
  await step("progress");
  await page.locator("#hop-4", { hasText: "14/45" }).waitFor(SOON);
  assert.equal(await page.evaluate(() => getSelection().toString().trim()), "4");
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

/** Counts how often the page is read anew. */
function readings(page) {
  const count = { now: 0 };
  page.on("response", (answer) => { if (answer.request().resourceType() === "fetch") count.now += 1; });
  count.until = async (number) => {
    for (const end = Date.now() + SOON.timeout; count.now < number;) {
      assert.ok(Date.now() < end, `read ${count.now} times, not ${number}`);
      await new Promise((done) => setTimeout(done, 50));
    }
  };
  return count;
}

test("ages grow although nothing happens", async () => {
  const page = await open(chain("completed"), { clock: true });
  const count = readings(page);
  // the stream begins with one message
  await count.until(1);
  await new Promise((done) => setTimeout(done, 1500));
  const before = await page.locator("#content").innerText();
  const read = count.now;
  await page.clock.fastForward(31_000);
  await count.until(read + 1);
  await page.locator("#content").filter({ hasNotText: before }).waitFor(SOON);
  await page.context().close();
});

test("a page that nobody sees is read when it is seen again", async () => {
  const page = await open(chain("running"));
  const count = readings(page);
  await count.until(1);
  const show = (hidden) => page.evaluate((hidden) => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  }, hidden);
  await show(true);
  await page.waitForTimeout(1000);
  const before = count.now;
  await step("progress");
  await page.waitForTimeout(4000);
  assert.equal(count.now, before);
  await show(false);
  await page.locator("#hop-4", { hasText: "15/45" }).waitFor(SOON);
  await page.context().close();
});

test("what happens is seen without loading the page again, also under a filter", async () => {
  const all = await open(chain("running"));
  const open_ones = await open(PAGES.filtered);
  const list = await open("/");
  for (const page of [all, open_ones, list]) {
    await page.evaluate(() => { window.mine = true; });
    await connected(page);
  }
  assert.match(await all.locator("#hop-4").innerText(), /running/);
  const digests = all.getByRole("table", { name: "Verified outputs" }).locator("tbody tr");
  assert.equal(await digests.count(), 4);
  await step("verify");
  await all.locator("#hop-4").getByText("verified").waitFor(SOON);
  await all.locator("#hop-5").getByText("ready").waitFor();
  assert.equal(await digests.count(), 5);
  await all.getByRole("table", { name: "What happened lately" }).getByText("hop.verified").first().waitFor();
  await open_ones.locator("#hop-4").waitFor({ state: "detached", ...SOON });
  assert.deepEqual(await hops(open_ones).locator("tbody tr").evaluateAll((rows) => rows.map((row) => row.id)), ["hop-5"]);
  await list.getByText("5 of 28").waitFor(SOON);
  await step("pause");
  await all.getByText(": lunch").waitFor(SOON);
  await list.getByText("lunch").waitFor(SOON);
  for (const page of [all, open_ones, list]) {
    assert.ok(await page.evaluate(() => window.mine), "the page was not loaded again");
    // what was brought in piece by piece is what a new load shows
    const text = (it) => it.locator("#content").innerText().then((t) => t.replace(/(\d+d)?(\d+h)?(\d+m)?\d+s/g, "TIME"));
    const fresh = await open(page.url());
    assert.equal(await text(page), await text(fresh));
    assert.deepEqual(page.complaints, []);
    await page.context().close();
    await fresh.context().close();
  }
  await step("resume");
});

test("everything can be reached by keyboard and shows where one is", async () => {
  const page = await open(chain("stuck"));
  await page.keyboard.press("Tab");
  const skip = page.getByRole("link", { name: "Skip to the content" });
  assert.ok(await skip.evaluate((element) => element === document.activeElement && element.getBoundingClientRect().left >= 0));
  const seen = [];
  for (let i = 0; i < 12; i++) {
    seen.push(await page.evaluate(() => {
      const at = document.activeElement, style = getComputedStyle(at);
      const outline = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
      return { name: at.textContent.trim() || at.name, outline };
    }));
    if (seen.at(-1).name === "Show") break;
    await page.keyboard.press("Tab");
  }
  assert.deepEqual(seen.map((at) => at.name), ["Skip to the content", "Chains", "Volunteers", "Lend your machine",
    "0stuck", "1blocked", "2blocked", "hops", "open", "Show"]);
  assert.deepEqual(seen.filter((at) => !at.outline), []);
  await picture(page, "focus");
  // the skip link leaves the navigation behind
  await page.reload();
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent.trim()), "0stuck");
  // the filter by keyboard alone
  await field(page).focus();
  await page.keyboard.type("1-2");
  await page.keyboard.press("Enter");
  await page.waitForURL(/hops=1-2/);
  assert.equal(await hops(page).locator("tbody tr").count(), 2);
  await page.context().close();
});

test("each state says what it is about", async () => {
  const says = async (path, name, text) => {
    const page = await open(path);
    assert.match(await page.getByRole("table", { name, exact: true }).innerText(), text);
    await page.context().close();
  };
  await says(chain("verifying"), "Hops", /1 result waits for agreement/);
  await says(chain("stuck"), "Hops", /3 attempts[\s\S]*COMPUTE_BUDGET/);
  await says(chain("completed"), "Verified outputs", /[0-9a-f]{64}/);
  await says("/", "Chains", /<b>letters<\/b> & signs\?[\s\S]*made twice/);
});

test("nothing to show is said in words", async () => {
  for (const [path, text] of [
    [EMPTY["empty-chains"], "There is no chain yet"],
    [EMPTY["empty-volunteers"], "Nobody has enrolled yet"],
    [`${chain("ready")}?hops=7`, "No hop fits the filter."],
    [PAGES["no-chain"], "there is no chain of this name"],
    [PAGES.missing, "there is no such page"],
    [`${chain("ready")}?hops=1&hops=2`, "cannot be read: start again"],
  ]) {
    const page = await open(path);
    await page.getByText(text).waitFor(SOON);
    await page.context().close();
  }
});

test("a filter that names no hops is said beside it and can be mended in place", async () => {
  const page = await open(PAGES["bad-filter"]);
  assert.match(await page.getByRole("alert").innerText(), /“25-5” names no hops: give them like 7, 5-25/);
  assert.equal(await field(page).inputValue(), "25-5");
  await field(page).fill("2-3");
  await page.getByRole("button", { name: "Show" }).click();
  assert.equal(await page.getByRole("alert").count(), 0);
  assert.equal(await hops(page).locator("tbody tr").count(), 2);
  await page.context().close();
});

test("the page of a volunteer's first steps names this coordinator", async () => {
  const page = await open("/lend");
  const commands = (await page.locator("pre").innerText()).replaceAll(/\\\n\s*/g, "");
  assert.ok(commands.includes(`cipherhop-worker enroll --coordinator ${site.grpc} --invite INVITE`), commands);
  assert.equal(await page.locator("nav [aria-current=page]").innerText(), "Lend your machine");
  await page.context().close();
});

test("a coordinator that went away is said, with what was last known", async () => {
  const page = await open(EMPTY["empty-volunteers"]);
  await connected(page);
  await step("down");
  await page.locator("#live", { hasText: "not connected" }).waitFor(SOON);
  assert.match(await page.locator("h1").innerText(), /Volunteers/);
  // once it is back the page follows again by itself
  await step("up");
  await page.getByText("the first after the restart").waitFor(SOON);
  await connected(page);
  await page.context().close();
});
