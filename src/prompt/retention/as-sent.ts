// Reasoning goes to the template as it came; what the template does with it is the template's. The baseline.

import type { Retention } from './retention.js'

export const asSent: Retention = {
  retain: (messages) => messages,
  beyondTemplate: false,
}
