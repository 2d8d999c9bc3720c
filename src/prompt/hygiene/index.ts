// The rules of prompt hygiene, by the name that `prompt.hygiene` gives.

export { billingHeader as 'billing-header' } from './billing-header.js'
