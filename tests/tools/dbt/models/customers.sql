{{ config(materialized='table') }}
select customer, count(*) as n, sum(amount) as amount from {{ ref('orders') }} group by customer
