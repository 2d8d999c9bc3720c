// Which of several simulated backends a request goes to: by turns, by its session, or by the router that serves. Invariant:
// time is the trace's; a backend computes one prompt at a time at one rate, so that load is what that rate makes of it.
import { createFleetRouter } from '../router/fleet-router.js';
import { ROUTER_DEFAULTS } from '../router/options.js';
import { ownerOf } from '../router/rendezvous.js';
import { Segments } from './segments.js';
export const ROUTERS = ['round-robin', 'session-hash', 'refrain'];
export function createRouting(references, options) {
    const { router, backends, rate } = options;
    if (router === 'refrain')
        return new RefrainRouting(references, backends, rate);
    const nothing = () => undefined;
    let next = 0;
    if (router === 'round-robin')
        return { place: () => next++ % backends, served: nothing };
    const owners = Array.from({ length: backends }, (_, i) => ({ id: `backend ${i}`, weight: 1, index: i }));
    // Without a session it is the prompt's beginning, as gateways do that hash prefixes.
    const keyOf = ({ session, nodes }) => session ?? `node ${nodes[0]}`;
    return { place: (request) => ownerOf(keyOf(request), owners).index, served: nothing };
}
class RefrainRouting {
    #router;
    #members;
    #segments;
    #now = 0;
    #count = 0;
    /** What the router is still to be told, the latest first. */
    #due = [];
    #last;
    constructor(references, backends, rate) {
        const clock = { now: () => this.#now, after: () => () => undefined };
        this.#segments = new Segments(references);
        this.#members = Array.from({ length: backends }, (_, i) => memberOf(i, rate));
        this.#router = createFleetRouter(ROUTER_DEFAULTS, { members: () => this.#members, clock });
    }
    place(request) {
        const now = request.at * 1000;
        while (this.#due.length > 0 && this.#due.at(-1).at <= now) {
            const { at, tell } = this.#due.pop();
            this.#now = Math.max(this.#now, at);
            tell();
        }
        this.#now = Math.max(this.#now, now);
        const { session, parent, promptTokens } = request;
        const query = {
            ...{ id: String(this.#count++), model: MODEL, tenant: 'default', salt: '' },
            ...(session !== undefined && { session }),
            ...(parent !== undefined && { parentSession: parent }),
            ...{ requestClass: 'main', priority: 'interactive', segments: this.#segments.of(request) },
            ...{ promptTokens, estimated: false },
        };
        const placement = this.#router.place(query);
        this.#router.sent(query, placement);
        const { id: member } = placement.member;
        this.#last = { query, member, predictedHitTokens: placement.predictedHitTokens, at: now };
        return this.#members.findIndex(({ id }) => id === member);
    }
    served({ cachedTokens, ttftMs }) {
        if (this.#last === undefined)
            throw new Error('nothing was placed');
        const { query, member, predictedHitTokens, at } = this.#last;
        const usage = { cachedTokens, promptTokens: query.promptTokens, completionTokens: 0 };
        this.#tell(at + ttftMs, () => {
            this.#router.started(query, member);
            this.#router.settled({ query, member, predictedHitTokens, ...usage, ttftMs, failed: false });
        });
    }
    #tell(at, tell) {
        let place = this.#due.length;
        while (place > 0 && this.#due[place - 1].at < at)
            place--;
        this.#due.splice(place, 0, { at, tell });
    }
}
const MODEL = 'simulated';
function memberOf(index, rate) {
    return {
        ...{
            id: `backend ${index}`,
            url: `http://backend-${index}`,
            kind: 'refrain',
            models: [MODEL],
            state: 'up',
            weight: 1,
        },
        knowledge: 'learned',
        load: { inFlight: 0, queuedPrefillTokens: 0, decoding: 0, reportedQueue: 0 },
        rates: { prefillTokensPerSecond: rate, restoreCost: { device: 0, host: 0.1, disk: 0.5, remote: 0.8 } },
    };
}
//# sourceMappingURL=routing.js.map