// SPDX-License-Identifier: GPL-2.0-or-later
// The job of bench replay on Restate: restate-service.mjs PORT. A session is a virtual object, and so
// is what all share.
import * as restate from "@restatedev/restate-sdk";

// For Node.js before 22, which the SDK wants
Promise.withResolvers ??= function () {
	let resolve, reject;
	const promise = new this((a, b) => { resolve = a; reject = b; });
	return { promise, resolve, reject };
};

const shared = restate.object({
	name: "shared",
	handlers: {
		add: async (ctx, by) => {
			const sum = ((await ctx.get("sum")) ?? 0) + by;
			ctx.set("sum", sum);
			return sum;
		},
	},
});

const session = restate.object({
	name: "session",
	handlers: {
		job: restate.handlers.object.exclusive({ input: restate.serde.binary, output: restate.serde.binary }, async (ctx) => {
			const asked = ((await ctx.get("asked")) ?? 0) + 1;
			ctx.set("asked", asked);
			const sum = await ctx.objectClient(shared, "all").add(1);
			return new TextEncoder().encode(`${sum} ${asked} `.padEnd(200, "."));
		}),
	},
});

restate.serve({ services: [shared, session], port: Number(process.argv[2]) });
